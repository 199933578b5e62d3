"""What `omni-portable doctor` looks at; each module holds checks of one kind. Nothing here loads torch by itself."""
