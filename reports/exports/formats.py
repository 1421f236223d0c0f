"""All built-in exporters: importing this module registers them."""

from evalsuite.reports.exports import every_eval_ever, hub, model_card
from evalsuite.reports.exports.exporter import EXPORTERS, Export, Exporter, export

__all__ = ["EXPORTERS", "Export", "Exporter", "every_eval_ever", "export", "hub", "model_card"]
