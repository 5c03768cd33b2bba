"""What the hub knows: rows, their enums, and pure rules about them. Decisions and the unit of work do not belong
here."""
