;;;; A service of letters. This comes before package.lisp, since it makes the packages LETTERS and
;;;; LETTERS.POST.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "letters.proto"
  :source "syntax = \"proto3\";
           package letters;
           message Letter { bytes text = 1; }
           service Post { rpc Exchange(stream Letter) returns (stream Letter); }")
