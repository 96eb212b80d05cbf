;;;; How the manual prints forms.

(in-package #:clgrpc.tests.manual)

(test forms-are-printed-as-users-write-them
  (loop for (form text) in '((:key ":key") (base:misuse "misuse") ('a "'a") (''a "''a")
                             ((quote) "(quote)") ('(a . :b) "'(a . :b)")
                             ((a ("B" 1) . 2) "(a (\"B\" 1) . 2)") (nil "nil"))
        do (is (string= text (manual::printed-form form)))))
