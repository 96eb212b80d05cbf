;;;; Status table and conditions.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test status-codes
  "Keyword and number lead to each other; unknown numbers are :unknown."
  (loop for code to 16
        do (is (= code (rpc:status-code (rpc:code-status code)))))
  (is (eq :unknown (rpc:code-status 17)))
  (is (eq :unknown (rpc:code-status -1)))
  (is (eq :deadline-exceeded (rpc:code-status 4)))
  (signals misuse (rpc:status-code :no-such-status)))

(test condition-classes
  "Each status has its condition class; the report is one line that says what matters."
  (signals rpc:not-found (rpc:fail :not-found "no Ada here"))
  (signals misuse (rpc:fail :ok "well"))
  (signals misuse (rpc:fail :not-fund "no Ada here"))
  (signals misuse (rpc:fail :not-found 404))
  (signals misuse (rpc:fail :not-found "no Ada here" :details "none"))
  (let ((error (rpc:make-rpc-error :unavailable :message "cannot connect" :sent nil
                                                :peer "127.0.0.1:1" :ended-by :transport)))
    (is (typep error 'rpc:unavailable))
    (is (eq :unavailable (rpc:rpc-error-status error)))
    (is (not (find #\Newline (princ-to-string error))))
    (is (search "never sent" (princ-to-string error)))
    (is (search "127.0.0.1:1" (princ-to-string error)))))

(test reports-are-one-line
  "What a peer has written into a message neither ends the line of the report nor reaches a terminal
as it came."
  (let ((report (princ-to-string
                 (rpc:make-rpc-error :internal :cause (format nil "a~%b")
                                               :message (format nil "x~%y~C[2Jz" (code-char 27))))))
    (is (string= "INTERNAL: x\\ny\\x1b[2Jz: a\\nb" report))
    (let ((long (make-string 100000 :initial-element #\a)))
      (is (> 4200 (length (princ-to-string (rpc:make-rpc-error :unknown :message long))))))))
