"""A client's quarterly renewal: tickets, billing, a person's word and one document, whatever breaks in between."""
