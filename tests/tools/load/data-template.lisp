(in-package #:clgrpc.tests.load)

(defun expand (text &rest arguments)
  (load:expand-template (load:compile-template text)
                        (apply #'load::make-call-data
                               :random (sb-ext:seed-random-state 1)
                               :method (base-method) arguments)))

(defun base-method ()
  (method:stub-method 'grpc.health.v1.health:check))

(test constant-texts
  "A text without templates stays itself."
  (let ((text "{\"a\":\"{ } \\\" {x}\"}"))
    (is (eq text (load:compile-template text)))))

(test variables
  (is (string= "a 7-3 b" (expand "a {{.RequestNumber}}-{{ .WorkerID }} b" :number 7 :worker 3)))
  (is (string= "grpc.health.v1.Health.Check grpc.health.v1.Health Check"
               (expand "{{.FullyQualifiedName}} {{.ServiceName}} {{.MethodName}}")))
  (is (string= "grpc.health.v1.HealthCheckRequest false false"
               (expand "{{.InputName}} {{.IsClientStreaming}} {{.IsServerStreaming}}")))
  (let ((now (floor (base:real-time-ns) 1000000000)))
    (is (<= now (parse-integer (expand "{{.TimestampUnix}}")) (+ 2 now)))
    (is (<= (* 1000 now) (parse-integer (expand "{{.TimestampUnixMilli}}")) (* 1000 (+ 2 now)))))
  (is (timestamp-p (expand "{{.Timestamp}}"))))

(defun timestamp-p (text)
  (and (= 20 (length text))
       (every (lambda (char form) (if (char= form #\9) (digit-char-p char) (char= char form)))
              text "9999-99-99T99:99:99Z")))

(test functions
  (loop repeat 50
        do (is (<= 3 (parse-integer (expand "{{randomInt 3 9}}")) 8))
           (is (member (expand "{{choice \"a b\" c}}") '("a b" "c") :test #'string=)))
  (is (= 8 (length (expand "{{randomString 8}}"))))
  (is (<= 2 (length (expand "{{randomString 0}}")) 16))
  (let ((uuid (expand "{{newUUID}}")))
    (is (= 36 (length uuid)))
    (is (char= #\4 (char uuid 14)))
    (is (find (char uuid 19) "89ab")))
  (is (= 36 (length (expand "{{.UUID}}")))))

(test wrong-templates
  (dolist (text '("{{" "{{nothing}}" "{{.Nothing}}" "{{randomInt 1}}" "{{randomInt 5 5}}"
                  "{{randomString x}}" "{{choice}}" "{{newUUID 1}}" "{{choice \"a}}" "{{}}"
                  "{{randomString 100000000}}"))
    (signals load:template-error (load:compile-template text))))
