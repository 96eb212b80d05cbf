;;;; DNS: messages that servers, and others, send. What is read of one is followed to an outcome.

(in-package #:clgrpc.tests.fuzz)

(defun dns-samples ()
  "A query, and answers with records of each kind, names that are pointers among them."
  (let ((question (dns-tests:question-octets "a.bc.def" dns:+a+)))
    (loop for octets
            in (list (dns:encode-query 1 (dns:name-octets "a.bc.def") dns:+txt+)
                     (dns-tests:answer-octets
                      question
                      (list (dns-tests:record-octets dns:+cname+ "z.bc.def")
                            (dns-tests:record-octets dns:+a+ "1.2.3.4"
                                                     :name (dns:name-octets "z.bc.def"))
                            (dns-tests:record-octets dns:+aaaa+ "::1")))
                     (dns-tests:answer-octets
                      question
                      (list (dns-tests:record-octets dns:+txt+ '("ab" "" "c"))
                            (dns-tests:record-octets 99 (octets-of 1 2 3)))
                      :additional (list (octets-of 0 0 41 4 0 1 0 0 0 0 0))))
          collect (make-sample :octets octets))))

(defun run-dns (kind octets)
  (declare (ignore kind) (type octets octets))
  (let ((message (dns:parse-message octets 0 (length octets))))
    (dolist (type (list dns:+a+ dns:+txt+))
      (let ((outcome (dns:message-outcome message (dns:name-octets "a.bc.def") type)))
        (unless (typep outcome 'dns:outcome) (found "the outcome is ~S" outcome))))))

(define-target "dns"
  :samples #'dns-samples
  :mutate (lambda (sample siblings)
            (mutate-octets (sample-octets sample) (vector (sample-octets (pick siblings)))))
  :run #'run-dns :conditions (dns:malformed-message) :seconds 1/20)
