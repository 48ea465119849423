"""Pictures sent by strangers: read, completed window by window, written."""
