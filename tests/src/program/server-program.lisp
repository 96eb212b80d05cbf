;;;; Some settings of a server by the command line.

(in-package #:clgrpc.tests.program)

(test the-environment-filters-a-binary-log
  "GRPC_BINARY_LOG_FILTER selects the calls in it; a wrong one is refused."
  (uiop:with-temporary-file (:pathname file)
    (flet ((filter (text)
             (let ((before (sb-posix:getenv "GRPC_BINARY_LOG_FILTER")))
               (unwind-protect
                    (progn (if text
                               (sb-posix:setenv "GRPC_BINARY_LOG_FILTER" text 1)
                               (sb-posix:unsetenv "GRPC_BINARY_LOG_FILTER"))
                           (handler-case (let ((log (program::open-binary-log
                                                     (namestring file) 100000 1)))
                                           (grpc:close-binary-log log)
                                           :opened)
                             (clgrpc.command:usage-error () :refused)))
                 (if before
                     (sb-posix:setenv "GRPC_BINARY_LOG_FILTER" before 1)
                     (sb-posix:unsetenv "GRPC_BINARY_LOG_FILTER"))))))
      (is (eq :opened (filter nil)))
      (is (eq :opened (filter "lab.Bench/Ask{h:10}")))
      (is (eq :refused (filter "lab.Bench/Ask{"))))))
