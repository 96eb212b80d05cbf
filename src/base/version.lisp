;;;; Which version of clgrpc this is, as clgrpc.asd has it when it is compiled: what is told to
;;;; peers, collectors and users.

(in-package #:clgrpc.base)

(defglobal **version** #.(asdf:component-version (asdf:find-system "clgrpc"))
  "The version of clgrpc, such as \"1.2.3\".")
