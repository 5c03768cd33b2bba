"""What the hub knows: rows, their enums, and pure rules about them. No decision, no unit of work enters here."""
