"""People are told: who has a question learns of it, is reminded, and answers through a link. Apprise is loaded only to send."""
