"""A .proto file like the largest of googleapis, google/cloud/compute/v1/compute.proto: requests with
five fields, resources with up to twenty, pages of them, enumerations within messages, long comments,
field numbers of nine digits, and a service for every ten resources. The same seed gives the same
file."""

import random

WORDS = ("address backend cluster disk endpoint firewall gateway health image instance interface "
         "license machine network node operation policy project quota region resource route router "
         "snapshot subnetwork target template token tunnel zone").split()
SCALARS = ("string string string string string string int32 int64 uint64 bool bool float double "
           "bytes").split()
OPENING = """// A file of a benchmark; seed %d.
syntax = "proto3";

package clgrpc.bench.%s;

option go_package = "clgrpc/bench/%s;%s";
"""
VERBS = ("Get", "List", "Insert", "Delete", "Patch")
MOST_NUMBER = 2 ** 29 - 1
RESERVED = range(19000, 20000)  # numbers that protoc does not allow


class File:
    """The text of a file under construction."""

    def __init__(self, package, seed):
        self.random = random.Random(seed)
        self.parts = [OPENING % (seed, package, package, package)]
        self.octets = len(self.parts[0])
        self.messages = []

    def add(self, lines):
        self.parts.append("\n".join(lines) + "\n\n")
        self.octets += len(self.parts[-1])

    def sentence(self, least, most):
        words = [self.random.choice(WORDS) for _ in range(self.random.randint(least, most))]
        return " ".join(words).capitalize() + "."

    def numbers(self, count):
        """COUNT different numbers of fields or of an enumeration's values."""
        found = set()
        while len(found) < count:
            number = self.random.randint(3000, MOST_NUMBER)
            if number not in RESERVED:
                found.add(number)
        return list(found)

    def names(self, count):
        """COUNT different names of fields."""
        found = {}
        while len(found) < count:
            found["_".join(self.random.choices(WORDS, k=self.random.randint(1, 3)))] = True
        return list(found)

    def field(self, name, number):
        """The lines of a field, its comment included."""
        kind, label = self.random.choice(SCALARS), self.random.choice(("optional ", "optional ", ""))
        shape = self.random.random()
        if self.messages and shape < 0.15:
            kind = self.random.choice(self.messages)
        elif shape < 0.25:
            label = "repeated "
        elif shape < 0.29:
            kind, label = "map<string, %s>" % kind, ""
        return ["  // " + self.sentence(15, 60), "  %s%s %s = %d;" % (label, kind, name, number), ""]

    def message(self, name, count, enumeration=False):
        lines = ["// " + self.sentence(5, 30), "message %s {" % name]
        names = self.names(count)
        numbers = self.numbers(count)
        if enumeration:
            values = ["    UNDEFINED_STATE = 0;"]
            values += ["    // %s\n    %s_%d = %d;" % (self.sentence(5, 20), word.upper(), i, number)
                       for i, (word, number) in enumerate(zip(self.names(6), self.numbers(6)))]
            lines += ["  enum State {", *values, "  }", "", "  State current_state = 1;", ""]
        for pair in zip(names, numbers):
            lines += self.field(*pair)
        self.add([*lines, "}"])
        self.messages.append(name)

    def resource(self, position):
        """A resource with its requests; return the methods of a service for it."""
        name = "%s%s%d" % (*(word.capitalize() for word in self.random.choices(WORDS, k=2)), position)
        self.message(name, self.random.randint(5, 20), enumeration=position % 3 == 0)
        methods = []
        for verb in VERBS:
            self.message("%s%sRequest" % (verb, name), 5)
            answer = name
            if verb == "List":
                answer = name + "List"
                self.add(["// " + self.sentence(5, 30), "message %s {" % answer,
                          "  repeated %s items = 100526016;" % name,
                          "  optional string next_page_token = 79797525;", "}"])
            methods += ["  // " + self.sentence(10, 40),
                        "  rpc %s%s(%s%sRequest) returns (%s);" % (verb, name, verb, name, answer)]
        return methods


def text(octets, package, seed=29):
    """A file of about OCTETS, whose PACKAGE is the last part of its own."""
    file, methods, position = File(package, seed), [], 0
    while file.octets < octets:
        methods += file.resource(position)
        position += 1
        if position % 10 == 0 or file.octets >= octets:
            file.add(["// " + file.sentence(5, 30), "service Service%d {" % position, *methods, "}"])
            methods = []
    return "".join(file.parts)
