"""How many weights a config stands for, part by part, and in what form they are published."""

from holdover.geometry.sizing.weights.base import ModelWeights, Part, Role
from holdover.geometry.sizing.weights.form import Form, form_of
from holdover.geometry.sizing.weights.whole import count_weights

__all__ = ["Form", "ModelWeights", "Part", "Role", "count_weights", "form_of"]
