"""What a user can act on: every message names the place, the value and the way out, in one line."""


class HeadwayError(ValueError):
    """Base of every error that a user can cause and mend; the command line prints it and exits with 2."""


class SpecError(HeadwayError):
    """A model description that cannot be: the message starts with the path of the field."""


class CheckpointError(HeadwayError):
    """A file, folder or download that cannot be read as a model: the message names the file."""


class TokenizerError(HeadwayError):
    """A vocabulary or pre-tokenizer that headway cannot reproduce exactly."""


class TemplateError(HeadwayError):
    """A chat template that refuses the messages, or one that does not render."""


class DataError(HeadwayError):
    """Input data (texts, token ids, batches) that the model cannot take."""


class RequestError(HeadwayError):
    """A generation request with a value out of range, or longer than the context."""
