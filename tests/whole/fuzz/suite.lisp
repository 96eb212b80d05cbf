;;;; Some thousand inputs for each decoder, and checks that findings would be found.

(in-package #:clgrpc.tests.fuzz)

(defparameter *suite-inputs* 20000 "How many inputs each decoder is given here.")

(defun suite-seed ()
  (let ((given (sb-ext:posix-getenv "CLGRPC_SEED")))
    (if given (parse-integer given) (random (expt 2 32) (make-random-state t)))))

(defun withstands (name &optional (inputs *suite-inputs*))
  (let* ((seed (suite-seed))
         (report (fuzz (find-target name) :inputs inputs :seed seed)))
    (format t "~&seed ~D~%" seed)
    (is (null (report-findings report)) "seed ~D: ~{~{input ~D: ~A~}~^; ~}" seed
        (report-findings report))
    ;; mutation neither destroys everything nor nothing
    (is (< 0.02 (/ (report-accepted report) (report-inputs report)) 0.98)
        "~D of ~D inputs are accepted" (report-accepted report) (report-inputs report))))

(test binary-withstands (withstands "binary"))
(test dynamic-withstands (withstands "dynamic"))
(test proto-withstands (withstands "proto"))
(test set-withstands (withstands "set"))
(test json-withstands (withstands "json"))
(test text-withstands (withstands "text"))
(test plain-json-withstands (withstands "plain-json"))
(test rest-template-withstands (withstands "rest-template"))
(test rest-request-withstands (withstands "rest-request"))
(test yaml-withstands (withstands "yaml"))
(test rest-rules-withstands (withstands "rest-rules" 8000))
(test hpack-withstands (withstands "hpack" 8000))
(test dns-withstands (withstands "dns" 8000))
(test http1-server-withstands (withstands "http1-server" 8000))
(test http1-client-withstands (withstands "http1-client" 8000))
(test http2-server-withstands (withstands "http2-server" 8000))
(test http2-client-withstands (withstands "http2-client" 8000))
(test grpc-server-withstands (withstands "grpc-server" 8000))
(test grpc-client-withstands (withstands "grpc-client" 8000))
(test grpc-web-withstands (withstands "grpc-web" 3000))
(test connect-withstands (withstands "connect" 3000))
(test connect-get-withstands (withstands "connect-get" 3000))
(test rest-withstands (withstands "rest" 3000))
(test tls-server-withstands (withstands "tls-server" 3000))
(test tls-client-withstands (withstands "tls-client" 3000))

(defparameter *subject-seconds* 1/2 "How long each subject is searched here for dear inputs.")

(test no-input-is-dear
  "Nothing that a peer says costs more than twenty times an ordinary call of as many octets."
  (let ((seed (suite-seed)))
    (format t "~&seed ~D~%" seed)
    (dolist (subject *subjects*)
      (let ((dear (first (dearest subject *subject-seconds* seed))))
        (when (> (dear-units dear) +most-units+) (confirmed dear 20))
        (is (<= (dear-units dear) +most-units+) "seed ~D, ~A: ~,1F units an octet of ~D: ~A" seed
            (subject-name subject) (dear-units dear) (dear-octets dear) (show-dear dear))))))

(test dear-inputs-are-found
  "What takes time with the square of its length, which its seed does not show."
  (flet ((units (measure)
           (dear-units (first (dearest (make-subject
                                        :name "test" :show #'shown
                                        :seeds (lambda () (list (octets-of 1 2 3)))
                                        :vary (lambda (octets other)
                                                (vary-octets octets (vector other)))
                                        :measure measure)
                                       1/2 1)))))
    (is (< +most-units+
           (units (lambda (octets)
                    (let ((octets (subseq octets 0 (min 1000 (length octets)))))
                      (values (ns-of (lambda ()
                                       (loop for a across octets
                                             sum (loop for b across octets count (= a b)))))
                              (max 1 (length octets)) 0))))))))

(test every-target-is-run
  (dolist (target *targets*)
    (is-true (fiveam:get-test (intern (format nil "~:@(~A~)-WITHSTANDS" (target-name target))
                                      '#:clgrpc.tests.fuzz))
             "~A" (target-name target))))

(test an-input-depends-on-seed-and-index-alone
  (let* ((target (find-target "binary")) (groups (make-samples target 5)))
    (flet ((octets (index) (nth-value 1 (input target groups 5 index))))
      (let ((seventh (progn (loop for index below 7 do (octets index)) (octets 7))))
        (octets 3)
        (is (equalp seventh (octets 7)))
        (is (not (equalp seventh (octets 8))))))))

(test trees-are-written-as-they-were-read
  (dolist (sample (let ((*random-state* (sb-ext:seed-random-state 1))) (binary-samples)))
    (when (sample-parts sample)
      (is (equalp (sample-octets sample) (tree-octets (sample-parts sample)))))))

(test findings-are-found
  (flet ((findings (run)
           (let ((*standard-output* (make-broadcast-stream))
                 (*most-findings* 1)
                 (*consed-octets* (expt 2 22)))
             (report-findings
              (fuzz (make-target :name "test" :samples #'plain-json-samples
                                 :mutate #'mutate-text :run run :seconds 1/20
                                 :conditions '(json-error limit-exceeded))
                    :inputs 50)))))
    (is (null (findings (lambda (kind octets) (declare (ignore kind octets))))))
    (is (null (findings (lambda (kind octets) (declare (ignore kind)) (parse-json octets)))))
    (is-true (findings (lambda (kind octets) (elt octets (if kind 0 (length octets))))))
    (is-true (findings (fn (_kind _octets) (make-octets (expt 2 23)))))
    (is-true (findings (fn (_kind _octets)
                         (loop with end = (+ (thread-seconds) 1/10)
                               until (> (thread-seconds) end)))))))
