;;;; The command `load`: the knee of a server, and what a server counted itself.

(in-package #:clgrpc.tests.tools)

(test the-knee-is-found
  "By doubling and halving, to within five per cent, from below and from above, in few steps."
  (loop for (knee first) in '((1000 100) (1000 5000) (37 100) (100000 100))
        do (let ((tried 0))
             (multiple-value-bind (good bad)
                 (tools::find-knee (lambda (rate) (incf tried) (<= rate knee)) first)
               (is (<= (/ knee 21/20) good knee) "~A of ~A" good knee)
               (is (< knee bad))
               (is (<= tried 20) "~D steps" tried))))
  (is (null (tools::find-knee (constantly nil) 100)))
  (is (< 100000 (tools::find-knee (constantly t) 1))))

(test load-finds-the-knee-of-a-server
  (with-reflected (address :services (make-instance 'clgrpc.examples:greeter))
    (multiple-value-bind (code output error-output)
        (run-line "load" address "helloworld.Greeter/SayHello" "--knee" "p50 > 1ns" "-z" "50ms"
                  "--rps" "50")
      (declare (ignore output error-output))
      (is (= 1 code) "no rate has such a median"))
    (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "--knee" "p50 > 1s" "--rounds"
                       "2")))))

(defun call-at-knee (function performs)
  "The value of RUN-AT-KNEE, or the FAILURE, for a p50 of 1 s and a rate of 100 at first, and its
lines. PERFORMS makes the run at a rate, from the number of the run and a function that makes one of
which so much of the due calls have ended, with more arguments for MAKE-RUN."
  (let* ((plan (load:make-plan :requests '())) (number 0) (lines (make-string-output-stream))
         (*error-output* lines))
    (flet ((perform ()
             (let ((rate (load:schedule-value (load:plan-rate plan) 0)))
               (funcall performs (incf number)
                        (lambda (share &rest arguments)
                          (apply #'load:make-run :intended-rps rate :count (round (* share rate))
                                                 :duration-ns 1000000000
                                                 :latency (load:restore-histogram
                                                           '((1000 . 1)) :sum 1000 :min 1000
                                                                         :max 1000)
                                                 arguments))))))
      (funcall function
               (handler-case (tools::run-at-knee plan (clgrpc.report:parse-conditions "p50 > 1s")
                                                 100 #'perform)
                 (tools::failure (failure) failure))
               (get-output-stream-string lines)))))

(test the-tool-is-not-taken-for-the-server
  "A knee that the tool could not reach is not called the server's."
  (flet ((lines-of (limited)
           (call-at-knee (lambda (run lines) (is (= 200 (load:run-intended-rps run))) lines)
                         (lambda (number make)
                           (if (< number 3)
                               (funcall make 1)
                               (funcall make 1/2 :limited limited))))))
    (let ((lines (lines-of "the tool: its event loops were busy")))
      (is (search "the tool, or its machine, does not keep up" lines))
      (is (search "The knee is at 200.0 calls a second or above, as the tool" lines)))
    (let ((lines (lines-of nil)))
      (is (search "the server does not keep up" lines))
      (is (search "The knee is at 200.0 calls a second; " lines)))))

(test a-search-that-is-broken-off-reports-its-last-run
  (call-at-knee (lambda (run lines)
                  (is (eq :interrupted (load:run-ended-early run)))
                  (is (= tools::+exit-interrupted+ (tools::run-exit-code run '())))
                  (is (search "the search was broken off" lines)))
                (lambda (number make)
                  (if (= 1 number)
                      (funcall make 1)
                      (funcall make 1 :ended-early :interrupted)))))

(test a-server-that-goes-has-had-its-knee
  "One that was never there has none."
  (flet ((search-until (first)
           (call-at-knee (lambda (result lines) (cons result lines))
                         (lambda (number make)
                           (if (< number first)
                               (funcall make 1)
                               (error 'load:run-failed :text "x cannot be reached: gone"))))))
    (destructuring-bind (run . lines) (search-until 3)
      (is (= 200 (load:run-intended-rps run)))
      (is (search "x cannot be reached: gone" lines))
      (is (search "The knee is at 200.0" lines)))
    (signals load:run-failed (search-until 1))))

(test server-counts-that-are-not-known
  "A run is reported without them, and a line says why."
  (flet ((reading (count)
           (tools::make-method-reading :role "server" :name "a.B/C" :ended count)))
    (is (equal '(("count" . 5)) (tools::server-figures (reading 3) (reading 8))))
    (is (equal '(("count" . 8)) (tools::server-figures nil (reading 8))))
    (signals tools::failure (tools::server-figures (reading 3) (reading 2)))
    (signals tools::failure (tools::server-figures (reading 3) nil)))
  (let* ((metrics (grpc:make-metrics))
         (page (grpc:start-server '() :listen "127.0.0.1:0" :http (grpc:metrics-handler metrics)))
         (lines (make-string-output-stream)) (*error-output* lines)
         (run (tools::call-beside-server
               (tools::parse-url (format nil "http://~A/metrics" (grpc:server-address page)))
               "a.B.C"
               (lambda ()
                 (grpc:stop-server page :drain 0)
                 (load:make-run)))))
    (is (null (load:run-server run)))
    (is (search "the server's own counts are not known: " (get-output-stream-string lines)))))

(test load-tells-what-the-server-counted
  (let* ((metrics (grpc:make-metrics))
         (page (grpc:start-server '() :listen "127.0.0.1:0" :http (grpc:metrics-handler metrics))))
    (unwind-protect
         (with-reflected (address :services (make-instance 'clgrpc.examples:greeter)
                                  :observer metrics)
           (let ((run (load-line address "helloworld.Greeter/SayHello" "-n" "50" "-c" "2"
                                 "--server-metrics"
                                 (format nil "http://~A/metrics" (grpc:server-address page)))))
             (is (= 50 (cdr (assoc "count" (load:run-server run) :test #'string=))))
             (is (< 0 (cdr (assoc "p99" (load:run-server run) :test #'string=)) 10000000000))))
      (grpc:stop-server page :drain 0))))
