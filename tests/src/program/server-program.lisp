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

(test arguments-of-a-server
  "The options of the command line, those of its own --limits, and the program's own at the end."
  (is (equal '(:listen "l" :loops 2 :observer (o) :credentials c :max-receive-octets 9)
             (program::server-arguments '(:listen "l" :loops 2 :max-receive-octets 9) '(o) 'c '())))
  (is (equal `(:listen "l" :loops 2 :observer () :credentials nil
               :protocols ,(clgrpc.server:protocol-names) :origins :any :max-calls 5
               :max-receive-octets 9 :drain-seconds 1)
             (program::server-arguments '(:listen "l" :loops 2 :max-receive-octets 9 :web t
                                          :origins :any :limits (:max-calls 5))
                                        '() nil '(:drain-seconds 1)))))

(test lines-of-a-server
  (with-replaced (('clgrpc.server:server-address (constantly "h:1")))
    (loop for (given metrics tls paths . lines)
            in '((() nil nil ())
                 ((:channelz t) "u" nil ("/a") "page at http://h:1/a" "channelz on h:1"
                  "metrics at u")
                 ((:otlp "c:1") nil t ("/a" "/b") "page at https://h:1/a" "page at https://h:1/b"
                  "recording 1.0 of the traces that begin here"
                  "exporting metrics and spans to c:1"))
          do (is (equal lines (program::page-lines nil given metrics tls paths))))))

(test observers-of-a-server
  "What the command line asks for, except what the program has itself."
  (let ((own (list (grpc:make-metrics) (grpc:make-tracing))))
    (flet ((asked (given &optional own)
             (mapcar #'type-of (program::asked-observers given own))))
      (loop for (given . types) in '((()) ((:metrics "a:1") grpc:metrics)
                                     ((:otlp "c:1") grpc:metrics grpc:tracing)
                                     ((:trace-sample 1/2) grpc:tracing)
                                     ((:access-log 1/2) grpc:access-log))
            do (is (equal types (asked given)))
               (is (equal (remove 'grpc:metrics (remove 'grpc:tracing types))
                          (asked given own)))))))

(test the-level-of-the-log-of-a-server
  "It is :info at least if calls are logged; without a level the log stays as it is."
  (let ((levels '()))
    (with-replaced (('clgrpc.base:log-writer (fn (_function &key level format)
                                               (push (list level format) levels)
                                               nil)))
      (let ((clgrpc.base:*log-function* nil))
        (loop for arguments in '((nil :text 1) (:warning :json nil) (:warning :text 1)
                                 (:none :text 1) (:debug :text 1))
              do (apply #'program::begin-logging arguments))))
    (is (equal '((:warning :json) (:info :text) (:info :text) (:debug :text)) (reverse levels)))))
