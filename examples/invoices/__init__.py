"""A folder of UBL 2.1 e-invoices, checked and posted to an accounting API, each document once."""
