;;;; The version of clgrpc, from clgrpc.asd at compile time. Peers, collectors and users see the
;;;; version.

(in-package #:clgrpc.base)

(defglobal **version** #.(asdf:component-version (asdf:find-system "clgrpc"))
  "The version of clgrpc, such as \"1.2.3\".")
