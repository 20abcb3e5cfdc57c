"""Text to token ids and back: tokenizer, chat template, streamed decoding, stop strings."""

from holdover.text.chat import ChatTemplate
from holdover.text.detokenize import IncrementalDetokenizer
from holdover.text.stop import StopMatcher
from holdover.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "StopMatcher", "Tokenizer", "load_tokenizer"]
