;;;; Tokens that are kept: one fetch at a time, before they expire; failures and their back-off.

(in-package #:clgrpc.tests.token)

(defclass test-credentials (grpc:token-credentials)
  ((answer :initarg :answer :accessor test-answer) ; a function of how many came before
   (count :initform (list 0) :reader test-count))
  (:documentation "Tokens that a test determines."))

(defmethod grpc:fetch-token ((credentials test-credentials))
  (funcall (test-answer credentials)
           (sb-ext:atomic-incf (car (test-count credentials)))))

(defun test-credentials (answer)
  (make-instance 'test-credentials :answer answer))

(defun fetches (credentials)
  (car (test-count credentials)))

(test tokens-are-kept
  (let ((credentials (test-credentials (lambda (number) (values (format nil "t~D" number) 3600)))))
    (dotimes (i 5) (is (equal "t0" (ask-token credentials))))
    (is (= 1 (fetches credentials)))))

(test one-fetch-at-a-time
  "However many attempts wait, all get the token of one fetch."
  (let* ((gate (sb-thread:make-semaphore))
         (credentials (test-credentials (fn (_number)
                                          (sb-thread:wait-on-semaphore gate :timeout 10)
                                          (values "t" 3600))))
         (answers (loop repeat 50 collect (grpc:get-request-metadata credentials *request*))))
    (is (every (lambda (answer) (typep answer 'grpc:future)) answers))
    (sb-thread:signal-semaphore gate)
    (dolist (answer answers)
      (is (equal '(("authorization" . "Bearer t")) (grpc:await answer :timeout 5))))
    (is (= 1 (fetches credentials)))))

(test tokens-are-fetched-before-they-expire
  "Late in its life a token is sent while another is fetched; in its last seconds it is not sent."
  (let ((credentials (test-credentials (lambda (number) (values (format nil "t~D" number) 3600)))))
    (is (equal "t0" (ask-token credentials)))
    (age-token credentials :refresh -1 :end 30)
    (is (equal "t0" (ask-token credentials)))
    (eventually (equal "t1" (ask-token credentials)))
    (is (= 2 (fetches credentials)))
    (age-token credentials :refresh -90 :end -1)
    (is (equal "t2" (ask-token credentials)))
    (is (= 3 (fetches credentials)))))

(test lives-of-tokens
  "A token of one hour is fetched again 90 seconds before its end and sent until 30 seconds before;
for a short life both times are fractions of it."
  (loop for (life refresh end) in '((3600 3510 3570) (360 270 330) (120 90 110) (12 9 11))
        do (let* ((now (token::wall-now)) (kept (token::keep-token "x" life)))
             (flet ((near-p (seconds ns)
                      (< (abs (- (+ now (* seconds 1000000000)) ns)) 5000000000)))
               (is (near-p refresh (token::kept-token-refresh-ns kept)))
               (is (near-p end (token::kept-token-end-ns kept)))
               (is (< (token::kept-token-refresh-ns kept) (token::kept-token-end-ns kept)))))))

(test failures-are-kept-for-a-while
  "All waiting attempts fail alike, others at once until the back-off is over; then one tries."
  (with-log ()
    (let* ((working nil)
           (credentials (test-credentials (fn (_number)
                                            (if working
                                                (values "t" 3600)
                                                (grpc:fail :unavailable "no server"))))))
      (dotimes (i 5) (is (eq :unavailable (status-of-token credentials))))
      (is (= 1 (fetches credentials)))
      (is (search "no server" (nth-value 1 (status-of-token credentials))))
      (setf working t)
      (end-back-off credentials)
      (is (equal "t" (ask-token credentials)))
      (is (= 2 (fetches credentials))))))

(test a-failure-keeps-the-token-that-there-is
  "While the old token is valid, attempts do not see the failure to fetch another, which is repeated
only after a back-off."
  (with-log ()
    (let ((credentials (test-credentials (lambda (number)
                                           (if (zerop number)
                                               (values "old" 3600)
                                               (error "broken"))))))
      (is (equal "old" (ask-token credentials)))
      (age-token credentials :refresh -1 :end 30)
      (dotimes (i 5) (is (equal "old" (ask-token credentials))))
      (eventually (token::token-failure credentials))
      (dotimes (i 5) (is (equal "old" (ask-token credentials))))
      (is (= 2 (fetches credentials)))
      (age-token credentials :refresh -90 :end -1)
      (multiple-value-bind (status text) (status-of-token credentials)
        (is (eq :unauthenticated status))
        (is (search "broken" text))))))

(test back-offs-grow
  (with-log ()
    (let ((credentials (test-credentials (lambda (number) (declare (ignore number)) (error "x"))))
          (waits '()))
      (dotimes (i 12)
        (status-of-token credentials)
        (push (- (token::token-retry-ns credentials) (clgrpc.loop:world-now)) waits)
        (end-back-off credentials))
      (is (every (lambda (wait) (< wait (* 181 1000000000))) waits))
      (is (< (* 55 1000000000) (first waits)))
      (is (< (first (last waits)) (* 2 1000000000))))))

(test what-is-no-token
  "Empty, long, or with octets that no header has: the attempt fails, and the text is neither sent
nor shown."
  (with-log ()
    (dolist (bad (list "" "a b" (format nil "a~Cb" #\Newline) (string (code-char 233)) 5 nil
                       (make-string 65536 :initial-element #\a)))
      (is (eq :unauthenticated
              (status-of-token (test-credentials (fn (_number) (values bad 3600)))))))
    (dolist (life (list 0 -5 nil "3600"))
      (is (eq :unauthenticated
              (status-of-token (test-credentials (fn (_number) (values "secret-token" life)))))))))

(test tokens-are-not-printed
  (let ((credentials (test-credentials (fn (_number) (values "secret-token" 3600)))))
    (ask-token credentials)
    (dolist (object (list credentials (token::token-kept credentials)
                          (grpc:bearer-token "secret-token")
                          (grpc:compose-credentials credentials
                                                    (grpc:bearer-token "secret-token"))))
      (is (not (search "secret" (princ-to-string object)))))))

(test tokens-of-calls
  "A channel sends the token for which it has waited, and a new one once that is fetched."
  (let ((credentials (test-credentials (lambda (number) (values (format nil "t~D" number) 3600)))))
    (with-probe (channel :channel-options (list :call-credentials credentials
                                                :plaintext-credentials t))
        (:ask (lambda (note call)
                (note (number-of note)
                      :text (cdr (assoc "authorization" (grpc:call-metadata call)
                                        :test #'string=)))))
      (with-threads (thread 8)
        (dotimes (i 50)
          (assert (equal "Bearer t0" (lab:note-text (ask channel (note i)))))))
      (age-token credentials :refresh -90 :end -1)
      (is (equal "Bearer t1" (lab:note-text (ask channel (note 1)))))
      (is (= 2 (fetches credentials))))))

(test calls-that-have-ended-are-forgotten
  "While a fetch hangs, nothing refers to a call whose deadline has passed, over the network and
within the image; a call that still waits gets the token."
  (let* ((gate (sb-thread:make-semaphore))
         (credentials (test-credentials (fn (_number)
                                          (sb-thread:wait-on-semaphore gate :timeout 20)
                                          (values "t" 3600))))
         (composed (grpc:compose-credentials (grpc:bearer-token "own") credentials)))
    (flet ((waiting () (hash-table-count (token::token-waiting credentials))))
      (with-probe (channel :server server :channel-options '(:plaintext-credentials t))
          (:ask #'double)
        (let ((inner (grpc:server-channel server)))
          (let ((last (grpc:call-async #'lab.bench:ask channel (note 1)
                                       :call-credentials credentials)))
            (dolist (channel (list channel inner))
              (dolist (credentials (list credentials composed))
                (is (typep (caught (ask channel (note 1) :timeout 0.05
                                                         :call-credentials credentials))
                           'grpc:deadline-exceeded))
                (is (typep (caught (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1)
                                                                :timeout 0.05
                                                                :call-credentials credentials)))
                           'grpc:deadline-exceeded))))
            (is (wait-until (lambda () (= 1 (waiting)))) "~D wait" (waiting))
            (sb-thread:signal-semaphore gate)
            (is (= 2 (number-of (grpc:await last :timeout 20))))
            (is (= 1 (fetches credentials))))
          (grpc:close-channel inner))))))

(test fetches-that-do-not-return
  "If the thread is ended, or its error cannot be printed, the waiting attempts fail; the next fetch
begins after the usual back-off."
  (with-log (:token-not-fetched)
    (loop for (end expected said) in `((sb-thread:abort-thread :unavailable "was ended")
                                       (,(lambda () (error 'support:unprintable)) :unauthenticated
                                        "cannot be printed"))
          do (let* ((end end)
                    (credentials (test-credentials (lambda (number)
                                                     (when (zerop number) (funcall end))
                                                     (values "t" 3600)))))
               (let ((error (ask-token credentials)))
                 (is (eq expected (grpc:rpc-error-status error)))
                 (is (search said (grpc:rpc-error-message error)))
                 (is (not (grpc:rpc-error-sent-p error))))
               (end-back-off credentials)
               (is (equal "t" (ask-token credentials)))
               (is (= 2 (fetches credentials)))))
    (is (= 2 (length (events-of :token-not-fetched))))))

(test tokens-are-checked
  "A token has 1 to 65,535 printable characters and has not expired."
  (loop for (token seconds) in `(("a" 1) ("!~" 1/1000)
                                 (,(make-string 65535 :initial-element #\a) 1))
        do (is (eq token (token::check-token token seconds))))
  (loop for (token seconds) in `(("" 1) ("a b" 1) (,(string (code-char 127)) 1) ("é" 1) (nil 1)
                                 ("a" 0) ("a" -1) ("a" nil)
                                 (,(make-string 65536 :initial-element #\a) 1))
        do (signals grpc:unauthenticated (token::check-token token seconds))))

(test the-lock-of-a-token-is-taken
  (let ((credentials (test-credentials (constantly nil))))
    (is (null (support:lockless (token::token-lock credentials)
                                `(grpc:get-request-metadata ,credentials ,*request*)
                                `(clgrpc.loop:leave-future ,credentials nil nil)
                                `(token::take-token ,credentials nil)
                                `(token::take-failure ,credentials "no"))))))
