;;;; Two small services. This comes before package.lisp, since it makes the packages WORDS and
;;;; WORDS.SPEAKER.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "words.proto"
  :source "syntax = \"proto3\";
           package words;
           message Word { string text = 1; }
           service Speaker {
             rpc Echo(Word) returns (Word);
             rpc Spell(Word) returns (stream Word);
             rpc Join(stream Word) returns (Word);
             rpc Talk(stream Word) returns (stream Word);
           }
           service Listener { rpc Hear(Word) returns (Word); }")
