;;;; Status table and conditions.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.status)

(test status-codes
  "Keyword and number lead to each other; unknown numbers are :unknown."
  (loop for code to 16
        do (is (= code (status:status-code (status:code-status code)))))
  (is (eq :unknown (status:code-status 17)))
  (is (eq :unknown (status:code-status -1)))
  (is (eq :deadline-exceeded (status:code-status 4)))
  (signals misuse (status:status-code :no-such-status)))

(test what-the-control-plane-may-not-say
  "gRFC A54: statuses that only applications give become :internal, and the text says so."
  (is (equal '(:unavailable "no route") (multiple-value-list
                                         (status:control-status :unavailable "no route"))))
  (dolist (status '(:ok :invalid-argument :not-found :already-exists :failed-precondition :aborted
                    :out-of-range :data-loss))
    (multiple-value-bind (given text) (status:control-status status "no host")
      (is (eq :internal given))
      (is (search "no host" text))
      (is (search (substitute #\_ #\- (string status)) text))))
  (signals misuse (status:control-status :no-such-status "x")))

(test numbers-without-a-keyword-are-sent-in-the-details
  "FAIL with such a number gives :unknown, with details that have the number and the message."
  (handler-case (status:fail 99 "odd" :details (list (google.rpc:make-status :code 5)))
    (status:unknown (error)
      (let ((sent (protobuf:parse-message 'google.rpc:status
                                          (status:rpc-error-details-octets error))))
        (is (= 99 (google.rpc:status-code sent)))
        (is (string= "odd" (google.rpc:status-message sent)))
        (is (= 1 (length (google.rpc:status-details sent))))))))

(test condition-classes
  "Each status has its condition class; the report is one line with the important data."
  (signals status:not-found (status:fail :not-found "no Ada here"))
  (signals misuse (status:fail :ok "well"))
  (signals misuse (status:fail :not-fund "no Ada here"))
  (signals misuse (status:fail :not-found 404))
  (signals misuse (status:fail 5 "no Ada here"))
  (signals misuse (status:fail :not-found "no Ada here" :details "none"))
  (let ((error (status:make-rpc-error :unavailable :message "cannot connect" :sent nil
                                                :peer "127.0.0.1:1" :ended-by :transport)))
    (is (typep error 'status:unavailable))
    (is (eq :unavailable (status:rpc-error-status error)))
    (is (not (find #\Newline (princ-to-string error))))
    (is (search "never sent" (princ-to-string error)))
    (is (search "127.0.0.1:1" (princ-to-string error)))))

(test reports-are-one-line
  "A peer's text in a message neither ends the line of the report nor reaches a terminal unchanged."
  (let ((report (princ-to-string
                 (status:make-rpc-error :internal :cause (format nil "a~%b")
                                               :message (format nil "x~%y~C[2Jz" (code-char 27))))))
    (is (string= "INTERNAL: x\\ny\\x1b[2Jz: a\\nb" report))
    (let ((long (make-string 100000 :initial-element #\a)))
      (is (> 4200 (length (princ-to-string (status:make-rpc-error :unknown :message long))))))))
