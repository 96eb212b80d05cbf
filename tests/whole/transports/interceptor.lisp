;;;; Interceptors of attempts: what they see, change and prevent, with a policy and without.

(in-package #:clgrpc.tests.transports)

(defun ends-recorder ()
  "An interceptor that notes how attempts end, and a function that waits until COUNT have ended and
returns the notes by number."
  (let ((notes '()) (lock (sb-thread:make-mutex)))
    (values (lambda (attempt)
              (grpc:on-attempt-end
               attempt
               (lambda ()
                 (sb-thread:with-mutex (lock)
                   (push (list (grpc:attempt-number attempt) (grpc:attempt-kind attempt)
                               (grpc:attempt-status attempt))
                         notes)))))
            (lambda (count)
              (eventually (= count (length notes)))
              (sb-thread:with-mutex (lock)
                (sort (shiftf notes '()) #'< :key #'first))))))

(defun marking (attempt)
  "An interceptor: ATTEMPT says in its metadata which one it is of which call."
  (setf (grpc:attempt-request-metadata attempt)
        (list* (cons "x-peer" (grpc:attempt-peer attempt))
               (cons "x-attempt" (princ-to-string (grpc:attempt-number attempt)))
               (cons "x-octets-bin" (coerce '(1 2) 'octets))
               (cons "x-span" (grpc:call-value (grpc:attempt-call attempt) 'span))
               (grpc:attempt-request-metadata attempt))))

(defun failing-attempts (count status &rest arguments)
  "An interceptor that has COUNT attempts fail, with ARGUMENTS for FAIL after STATUS and a text."
  (fn (_attempt) (when (<= 0 (decf count)) (apply #'grpc:fail status "not here" arguments))))

(define-case attempts-have-metadata-of-their-own ()
  "What the user gave, changed for each attempt alone; values of the call are there to read."
  (multiple-value-bind (recorder ends) (ends-recorder)
    (let ((seen '()) (failing (failing-first 1 #'double)))
      (with-transport (channel :channel-options
                               (list* :attempt-interceptors (list recorder #'marking)
                                      (retry-config)))
          (:ask (lambda (note call)
                  (push (ours (grpc:call-metadata call)) seen)
                  (funcall failing note call)))
        (attempts-made)
        (is (= 14 (number-of (ask channel (note 7) :metadata '(("x-mine" . "m"))
                                                   :values '(span "s"))))))
      (flet ((sent (name)
               (loop for metadata in (reverse seen)
                     collect (cdr (assoc name metadata :test #'string=)))))
        (is (equal '("0" "1") (sent "x-attempt")))
        (is (equal '("m" "m") (sent "x-mine")))
        (is (equal '("s" "s") (sent "x-span")))
        (is (equalp (list (coerce '(1 2) 'octets) (coerce '(1 2) 'octets)) (sent "x-octets-bin")))
        (is (every #'stringp (sent "x-peer")))))
    (is (equal '((0 :first :unavailable) (1 :retry :ok)) (funcall ends 2)))))

(define-case attempts-fail-before-they-are-sent ()
  "With what an interceptor says, which the policy judges as an answer of the server."
  (multiple-value-bind (recorder ends) (ends-recorder)
    (with-transport (channel :channel-options
                             (list* :attempt-interceptors
                                    (list recorder (failing-attempts 2 :unavailable))
                                    (retry-config)))
        (:ask (failing-first 0 #'double))
      (attempts-made)
      (is (= 14 (number-of (ask channel (note 7)))))
      (is (= 1 (attempts-made))))
    (is (equal '((0 :first :unavailable) (1 :retry :unavailable) (2 :retry :ok))
               (funcall ends 3)))))

(define-case calls-fail-with-what-an-interceptor-says ()
  "Status, text, details and trailers, for calls of all kinds, with a policy or without; no handler
hears of them."
  (dolist (config (list '() (retry-config)))
    (multiple-value-bind (recorder ends) (ends-recorder)
      (with-transport (channel :channel-options
                               (list* :attempt-interceptors
                                      (list recorder
                                            (failing-attempts 1000 :not-found
                                                              :trailers '(("x-tail" . "t"))))
                                      config))
          (:ask (failing-first 0 #'double) :watch (failing-first 0 #'count-up)
           :collect (failing-first 0 #'add-up) :chat (failing-first 0 #'echo))
        (attempts-made)
        (flet ((check (error)
                 (is (typep error 'grpc:not-found))
                 (is (search "not here" (grpc:rpc-error-message error)))
                 (is-false (grpc:rpc-error-sent-p error))
                 (is (equal '(("x-tail" . "t")) (ours (grpc:rpc-error-trailers error))))
                 (is (equal '((0 :first :not-found)) (funcall ends 1)))))
          (check (caught (ask channel (note 1))))
          (check (caught (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1))
                                     :timeout 20)))
          (check (caught (numbers (watch channel (note 3)))))
          (check (caught (collect channel (notes 1 2))))
          (check (caught (numbers (chat channel (notes 1 2))))))
        (is (= 0 (attempts-made)))))))

(define-case an-interceptor-may-push-back ()
  "Its trailers ask the policy for no further attempt."
  (with-transport (channel :channel-options
                           (list* :attempt-interceptors
                                  (list (failing-attempts
                                         1 :unavailable
                                         :trailers '(("grpc-retry-pushback-ms" . "-1"))))
                                  (retry-config)))
      (:ask (failing-first 0 #'double))
    (attempts-made)
    (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
    (is (= 0 (attempts-made)))
    (is (= 2 (number-of (ask channel (note 1)))))))

(define-case errors-in-interceptors-of-attempts-are-internal ()
  "Metadata that cannot be sent, trailers that cannot come."
  (dolist (interceptor (list (lambda (attempt)
                               (setf (grpc:attempt-request-metadata attempt) '(("Bad Name" . "1"))))
                             (failing-attempts 1 :not-found :trailers '(("Bad Name" . "1")))))
    (with-transport (channel :channel-options (list :attempt-interceptors (list interceptor))
                             :events (:attempt-interceptor-error))
        (:ask (failing-first 0 #'double))
      (attempts-made)
      (is (typep (caught (ask channel (note 1))) 'grpc:internal))
      (is (= 0 (attempts-made))))))

(defun seeing (see)
  "An interceptor that calls SEE with what has come of an attempt, once it has, and with true if its
metadata could be changed then."
  (lambda (attempt)
    (flet ((entry (name metadata) (cdr (assoc name metadata :test #'string=))))
      (grpc:on-attempt-end
       attempt
       (lambda ()
         (funcall see (list (grpc:attempt-status attempt)
                            (grpc:attempt-message attempt)
                            (entry "x-head" (grpc:attempt-metadata attempt))
                            (entry "x-tail" (grpc:attempt-trailers attempt)))
                  (handler-case (progn (setf (grpc:attempt-request-metadata attempt) '()) t)
                    (grpc:misuse () nil))))))))

(define-case attempts-are-seen-to-their-end ()
  "Without a policy, too: status, text and metadata both ways. Interceptors may be for a method."
  (let ((seen '()) (calls 0) (early nil))
    (with-transport (channel
                     :channel-options
                     (list :attempt-interceptors
                           (list (lambda (attempt)
                                   (when (grpc:attempt-status attempt) (setf early t))
                                   (incf calls))
                                 (list 'lab.bench:ask
                                       (seeing (lambda (what changed)
                                                 (push (if changed :changed what) seen)))))))
        (:ask (lambda (note call)
                (setf (grpc:call-trailers call) '(("x-tail" . "t")))
                (when (= 2 (number-of note)) (grpc:fail :aborted "no"))
                (grpc:send-metadata call '(("x-head" . "h")))
                note)
         :watch #'count-up :chat #'echo)
      (flet ((seen ()
               (eventually seen)
               (shiftf seen '())))
        (ask channel (note 1))
        (is (equal '((:ok "" "h" "t")) (seen)))
        (caught (ask channel (note 2)))
        (is (equal '((:aborted "no" nil "t")) (seen)))
        (is (= 1 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1))
                                        :timeout 20))))
        (is (equal '((:ok "" "h" "t")) (seen)))
        (is (equal '(0 1) (numbers (watch channel (note 2)))))
        (is (equal '(1 2) (numbers (send-all (chat channel :open) (notes 1 2)))))
        (is (= 5 calls))
        (is-false early)
        (is (null seen))))))

(define-case hedges-are-seen ()
  "Each with its kind; the one that lost is cancelled."
  (multiple-value-bind (recorder ends) (ends-recorder)
    (let ((cancelled (make-signal)))
      (with-transport (channel :channel-options (list* :attempt-interceptors (list recorder)
                                                       (hedging-config :attempts 2)))
          (:ask (hanging-first 1 #'double cancelled))
        (attempts-made)
        (is (= 14 (number-of (ask channel (note 7)))))
        (is (equal '((0 :first :cancelled) (1 :hedge :ok)) (funcall ends 2)))))))

(define-case attempts-of-cancelled-calls-are-cancelled ()
  (multiple-value-bind (recorder ends) (ends-recorder)
    (let ((cancelled (make-signal)))
      (with-transport (channel :channel-options (list :attempt-interceptors (list recorder)))
          (:chat (hanging-first 1 #'echo cancelled))
        (attempts-made)
        (let ((call (send-all (chat channel :open) (notes 1))))
          (eventually (= 1 (aref **attempts** 0)))
          (grpc:cancel call)
          (is (equal '((0 :first :cancelled)) (funcall ends 1))))))))

(define-case functions-of-an-attempts-end-keep-their-order ()
  (let ((order '()) (ended (make-signal)))
    (with-transport (channel :channel-options
                             (list :attempt-interceptors
                                   (list (lambda (attempt)
                                           (dolist (number '(1 2 3))
                                             (let ((number number))
                                               (grpc:on-attempt-end
                                                attempt (lambda () (push number order)))))
                                           (grpc:on-attempt-end
                                            attempt (lambda () (signal-it ended)))))))
        (:ask #'double)
      (is (= 14 (number-of (ask channel (note 7)))))
      (is (await-signal ended))
      (is (equal '(3 2 1) order)))))
