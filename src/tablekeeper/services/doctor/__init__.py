"""The doctor: what is wrong with a table, what it means, and what can be repaired."""

from tablekeeper.services.doctor.examine import examine_table, repair_table
from tablekeeper.services.doctor.repairs import Remedies
from tablekeeper.services.doctor.report import DoctorReport, Finding, Repair, RepairKind, Severity
from tablekeeper.services.doctor.view import DoctorSettings

__all__ = [
    "DoctorReport",
    "DoctorSettings",
    "Finding",
    "Remedies",
    "Repair",
    "RepairKind",
    "Severity",
    "examine_table",
    "repair_table",
]
