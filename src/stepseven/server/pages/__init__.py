"""The pages that people see: rendered here, a little plain JavaScript, and whole without it."""
