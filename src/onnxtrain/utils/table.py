"""Columns of text for logs."""

from __future__ import annotations


class Row:
    """Cells of one line, and tables that are printed below it."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = [str(column) for column in columns]
        self.annotations: list[PTable] = []

    def append_annotation_table(self, table: PTable) -> None:
        """Print a table below this row."""
        self.annotations.append(table)


class PTable:
    """A table whose columns are as wide as their longest cell.

    Args:
        sortable: Whether rows are printed in the order of their first cells.
    """

    def __init__(self, sortable: bool = False) -> None:
        self._rows: list[Row] = []
        self._sortable = sortable

    def add_row(self, columns: list[str]) -> Row:
        """Add a row.

        Raises:
            ValueError: if it has another number of cells than the first one.
        """
        row = Row(columns)
        if self._rows and len(row.columns) != len(self._rows[0].columns):
            raise ValueError(
                f"a row of {len(row.columns)} cells in a table of {len(self._rows[0].columns)}"
            )
        self._rows.append(row)
        return row

    def get_string(self, first_column_width: int = 0, second_column_width: int = 0) -> str:
        """The table as text, one line for each row; two columns may be made wider."""
        least = [first_column_width, second_column_width]
        rows = self._rows
        if self._sortable:
            rows = sorted(rows, key=lambda row: row.columns[0])
        columns = list(zip(*(row.columns for row in rows), strict=True))
        least += [0] * (len(columns) - len(least))
        widths = [max(low, *map(len, c)) for low, c in zip(least, columns, strict=False)]
        lines = []
        for row in rows:
            cells = zip(row.columns, widths, strict=True)
            lines.append("".join(f"{cell:<{width + 2}}" for cell, width in cells) + "\n")
            lines += [table.get_string(*widths[:2]) for table in row.annotations]
        return "".join(lines)
