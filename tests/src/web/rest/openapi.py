"""Judge the OpenAPI 3.1 document on the standard input by the schema of the OpenAPI Initiative
(tests/vectors/openapi, https://spec.openapis.org/oas/3.1/schema/2022-10-07), a file that is the only
argument, and the schemas in it by that of JSON Schema 2020-12. Print what is wrong."""
import json
import sys

from jsonschema import Draft202012Validator


def schemas(data, at=""):
    """The schemas in DATA, which is AT there, with their places."""
    if isinstance(data, dict):
        for name, value in data.items():
            if name == "schema":
                yield at, value
            else:
                yield from schemas(value, at + "/" + name)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from schemas(value, "%s/%d" % (at, index))


with open(sys.argv[1], encoding="utf-8") as file:
    validator = Draft202012Validator(json.load(file))
document = json.load(sys.stdin)
named = document.get("components", {}).get("schemas", {}).items()
wrong = ["%s: %s" % ("/".join(map(str, error.absolute_path)), error.message[:300])
         for error in validator.iter_errors(document)]
rules = Draft202012Validator(Draft202012Validator.META_SCHEMA)
for place, schema in [*schemas(document), *named]:
    wrong += ["%s: %s" % (place, error.message[:300]) for error in rules.iter_errors(schema)]
if wrong:
    sys.exit("\n".join(wrong))
print("%d schemas" % len(named))
