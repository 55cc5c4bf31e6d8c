/* Pages are whole without this. It adds: keys, a press that counts once, and what happens while you look. */
(() => {
  "use strict";
  const page = document.body.dataset.page;
  const typing = (el) => el && (el.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(el.tagName));

  // A second press of the same button sends nothing.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => form.querySelectorAll("button").forEach((b) => { b.disabled = true; }), 0);
  });
  window.addEventListener("pageshow", () => document.querySelectorAll("form[data-sent]").forEach((form) => {
    delete form.dataset.sent;
    form.querySelectorAll("button").forEach((b) => { b.disabled = false; });
  }));

  // Pressing Enter in the field of a choice means that choice, not the first button of the form.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    const choice = event.target.closest(".choices li")?.querySelector("button[name=choice]");
    if (choice) { event.preventDefault(); choice.click(); }
  });

  const items = () => [...document.querySelectorAll(".item")].filter((a) => a.offsetParent !== null);
  const move = (step) => {
    const all = items();
    const at = all.findIndex((a) => a.getAttribute("aria-current"));
    const next = all[Math.min(all.length - 1, Math.max(0, at + step))];
    if (next && !next.getAttribute("aria-current")) { sessionStorage.setItem("moved", "1"); location.assign(next.href); }
  };
  const choose = (n) => {
    const button = document.querySelector(`.choices button[data-n="${n}"]`);
    if (!button) return;
    const field = button.closest("li").querySelector(".with input:not(.fact)");
    if (field && !field.value) { field.focus(); return; }  // it needs something first
    if (document.activeElement === button) button.click();
    else { button.focus(); }  // once to see it, Enter or the same key again to send it
  };
  const help = () => {
    const there = document.querySelector(".help");
    if (there) { there.remove(); return; }
    const box = document.createElement("div");
    box.className = "help"; box.setAttribute("role", "dialog"); box.setAttribute("aria-label", "Keys");
    const list = document.createElement("dl");
    for (const [key, what] of [["j k", "next, previous question"], ["1 – 9", "choose; again or Enter sends it"], ["e", "edit the values first"], ["n", "add a note"], ["?", "these keys"]]) {
      const dt = document.createElement("dt"), dd = document.createElement("dd"), kbd = document.createElement("kbd");
      kbd.textContent = key; dt.append(kbd); dd.textContent = what; list.append(dt, dd);
    }
    box.append(list); document.body.append(box);
  };
  const open = (selector) => {
    const details = document.querySelector(selector);
    if (!details) return;
    details.open = true;
    details.querySelector("textarea:not([readonly])")?.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { document.querySelector(".help")?.remove(); document.activeElement?.blur(); return; }
    if (typing(event.target)) return;
    if (event.key === "?") help();
    else if (page === "inbox" && (event.key === "j" || event.key === "k")) move(event.key === "j" ? 1 : -1);
    else if (page === "inbox" && /^[1-9]$/.test(event.key)) { event.preventDefault(); choose(event.key); }
    else if (page === "inbox" && event.key === "e") { event.preventDefault(); open(".edit"); }
    else if (page === "inbox" && event.key === "n") { event.preventDefault(); open(".note"); }
  });

  // What is new replaces what stands there, unless somebody is writing in it.
  const refresh = async (selector) => {
    const mine = document.querySelector(selector);
    if (!mine || typing(document.activeElement) || [...mine.querySelectorAll("details[open]")].length) return;
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const theirs = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(selector);
    if (theirs && theirs.innerHTML !== mine.innerHTML) { mine.replaceWith(theirs); return true; }
  };
  const run = document.querySelector(".run[data-live=yes]");
  if (run && window.EventSource) {
    const source = new EventSource(`/v1/runs/${encodeURIComponent(run.dataset.run)}/events`);
    let waiting = null, first = true;
    const news = () => { if (!waiting) waiting = setTimeout(() => { waiting = null; refresh("main .run"); }, 300); };
    for (const kind of ["step", "run", "question"]) source.addEventListener(kind, () => { if (!first) news(); });
    source.addEventListener("end", () => { source.close(); news(); });
    setTimeout(() => { first = false; news(); }, 800);
  }
  if (page === "inbox") setInterval(() => { if (!document.hidden) refresh(".list"); }, 10000);
})();
