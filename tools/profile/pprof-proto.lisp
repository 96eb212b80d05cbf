;;;; The proto file of pprof. This comes before package.lisp, since it makes the package
;;;; PERFTOOLS.PROFILES.

(in-package #:cl-user)

(clgrpc:define-proto "../../proto/pprof/profile.proto" :optimize-for :code-size)
