"""`POST /images/classify` and `POST /images/answer`."""
