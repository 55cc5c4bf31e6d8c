"""A run as the command line reads it. As JSON it is the document that the HTTP API gives."""

from __future__ import annotations

from stepseven.server.documents import RunView, question_document, view

__all__ = ["RunView", "question_document", "view"]
