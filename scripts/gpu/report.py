"""What a run of gpu_check finds: rows that are printed, and a JSON file that is written after every item, so that nothing is lost when
the time is up.

A check is made of items (networks, mostly); an item has rows, and is done, or was left out for lack of time. A later run goes on from the
file of an earlier one: what that has done, and found nothing wrong with, is kept and not done again.
"""
import datetime
import json


class Report:
    def __init__(self, path, facts, earlier=None):
        self.path, self.facts = path, facts
        self.checks = earlier["checks"] if earlier else {}

    def is_done(self, check, item):
        record = self.checks.get(check, {}).get(item)
        return record is not None and "not_done" not in record and not any(row["good"] is False for row in record["rows"])

    def todo(self, check, items):
        """Those of the items that are not done: what has no rows yet comes before what ended early or was found wrong."""
        return sorted((item for item in items if not self.is_done(check, item)),
                      key=lambda item: bool(self.checks.get(check, {}).get(item, {}).get("rows")))

    def begin(self, check, item):
        self.check, self.item = check, item
        self.record = {"date": datetime.date.today().isoformat(), "commit": self.facts["commit"], "rows": []}
        self.checks.setdefault(check, {})[item] = self.record

    def row(self, what, result, good=None, **values):
        """`good`: True or False where the row judges something. `values`: the numbers that the text tells, for tables."""
        self.record["rows"].append({"what": what, "result": result, "good": good, **({"values": values} if values else {})})
        mark = {True: "ok", False: "WRONG", None: ""}[good]
        print(f"{self.check:<12} {what:<38} {result:<60} {mark}".rstrip(), flush=True)

    def leave(self, check, item, why):
        """The item was not done, or not to its end."""
        if item not in self.checks.get(check, {}):
            self.begin(check, item)
        self.checks[check][item]["not_done"] = why

    def values(self, check, item):
        """The numbers of an item that was done, in this run or an earlier one."""
        rows = self.checks.get(check, {}).get(item, {"rows": []})["rows"]
        return {name: value for row in rows for name, value in row.get("values", {}).items()}

    def rows(self):
        return [row for items in self.checks.values() for record in items.values() for row in record["rows"]]

    def not_done(self):
        return [f"{check} {item}".strip() for check, items in self.checks.items() for item, record in items.items() if "not_done" in record]

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.facts, "not_done": self.not_done(), "checks": self.checks}, indent=1) + "\n")
