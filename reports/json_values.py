"""Values of the report as JSON."""

from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate


def to_json(value: Any) -> Any:
    """Convert dataclasses to objects, tuples to lists, an `Estimate` to its interval or its reason.

    An end of an interval without a bound becomes null.
    """
    if isinstance(value, Estimate):
        return {"undefined": value.why} if value.interval is None else to_json(value.interval)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return formatting.bound(value) if isinstance(value, float) else value
