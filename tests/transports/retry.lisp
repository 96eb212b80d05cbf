;;;; Calls that are made again (gRFC A6), and what else a service config says of a method.

(in-package #:clgrpc.tests.transports)
(in-suite :clgrpc.transports)

(defun retry-config (&key (attempts 3) (initial 0.01) (codes '(:unavailable)) more)
  "The keywords of a channel whose service config has a retry policy for all methods."
  (list :service-config
        (list* :method-config
               `((:name (())
                  :retry-policy (:max-attempts ,attempts :initial-backoff ,initial
                                 :max-backoff ,(* 2 initial) :backoff-multiplier 2
                                 :retryable-status-codes ,codes)))
               more)))

(sb-ext:defglobal **attempts** (make-array 1 :element-type 'sb-ext:word :initial-element 0))

(defun note-attempt ()
  "Note an attempt. Return how many there were before."
  (sb-ext:atomic-incf (aref (the (simple-array sb-ext:word (1)) **attempts**) 0)))

(defun failing-first (count handler &key (status :unavailable) pushback)
  "HANDLER, which fails with STATUS the first COUNT times, and asks for PUSHBACK."
  (lambda (request call)
    (if (< (note-attempt) count)
        (grpc:fail status "not now"
                   :trailers (and pushback (list (cons "grpc-retry-pushback-ms" pushback))))
        (funcall handler request call))))

(defun attempts-made ()
  "How many attempts there were since this was called last."
  (shiftf (aref **attempts** 0) 0))

(define-case calls-are-tried-again ()
  "Of all kinds whose requests are at hand, from stubs, as futures and as streams."
  (with-transport (channel :channel-options (retry-config))
      (:ask (failing-first 2 #'double) :watch (failing-first 2 #'count-up)
       :collect (failing-first 2 #'add-up))
    (attempts-made)
    (is (= 14 (number-of (ask channel (note 7)))))
    (is (= 3 (attempts-made)))
    (let ((request (note 7)))
      (is (= 14 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel request)
                                       :timeout 20)))))
    (is (= 3 (attempts-made)))
    (is (equal '(0 1 2) (numbers (watch channel (note 3)))))
    (is (= 3 (attempts-made)))
    (let ((call (watch channel (note 3))))
      (is (= 0 (number-of (grpc:receive call))))
      (is (equal '(1 2) (numbers call))))
    (is (= 3 (attempts-made)))
    (is (= 6 (number-of (lab.bench:collect channel (list (note 1) (note 2) (note 3))
                                           :timeout 20))))
    (is (= 3 (attempts-made)))
    (is (= 6 (number-of (grpc:await (grpc:call-async #'lab.bench:collect channel
                                                     (list (note 1) (note 2) (note 3)))
                                    :timeout 20))))
    (is (= 3 (attempts-made)))))

(define-case streams-are-tried-again-for-callbacks ()
  (with-transport (channel :channel-options (retry-config))
      (:watch (failing-first 2 #'count-up))
    (attempts-made)
    (let ((call (watch channel (note 3))) (seen '()) (done (make-signal)))
      (grpc:on-message call (lambda (note) (push (number-of note) seen)))
      (grpc:on-end call (lambda () (signal-it done)))
      (is (await-signal done))
      (is (eq :ok (grpc:call-status call)))
      (is (equal '(2 1 0) seen))
      (is (= 3 (attempts-made))))))

(define-case attempts-end ()
  "After so many, and after a status that may not be tried again; the error tells of each."
  (with-transport (channel :channel-options (retry-config))
      (:ask (failing-first 9 #'double) :watch (failing-first 9 #'count-up :status :not-found))
    (attempts-made)
    (let ((error (caught (ask channel (note 1)))))
      (is (eq :unavailable (status-of-error error)))
      (is (string= "not now" (grpc:rpc-error-message error)))
      (is (equal '((0 :unavailable) (1 :unavailable) (2 :unavailable))
                 (mapcar (lambda (attempt) (list (getf attempt :number) (getf attempt :status)))
                         (grpc:rpc-error-attempts error)))))
    (is (= 3 (attempts-made)))
    (is (eq :not-found (status-of-error (caught (numbers (watch channel (note 1)))))))
    (is (= 1 (attempts-made)))))

(define-case retries-can-be-switched-off ()
  (with-transport (channel :channel-options (list* :retry nil (retry-config)))
      (:ask (failing-first 9 #'double))
    (attempts-made)
    (is (eq :unavailable (status-of-error (caught (ask channel (note 1))))))
    (is (= 1 (attempts-made))))
  (with-transport (channel :channel-options (list* :max-attempts 2 (retry-config)))
      (:ask (failing-first 9 #'double))
    (is (eq :unavailable (status-of-error (caught (ask channel (note 1))))))
    (is (= 2 (attempts-made)))))

(define-case an-answer-commits ()
  "Headers do, and a message."
  (with-transport (channel :channel-options (retry-config))
      (:ask (lambda (note call)
              (declare (ignore note))
              (note-attempt)
              (grpc:send-metadata call '(("x-a" . "b")))
              (grpc:fail :unavailable "late"))
       :watch (lambda (note call)
                (note-attempt)
                (grpc:send call note)
                (grpc:fail :unavailable "late")))
    (attempts-made)
    (let ((error (caught (ask channel (note 1)))))
      (is (eq :unavailable (status-of-error error)))
      (is (= 1 (attempts-made))))
    (let ((seen '()))
      (is (eq :unavailable
              (status-of-error (caught (grpc:do-messages (note (watch channel (note 5)))
                                         (push (number-of note) seen))))))
      (is (equal '(5) seen))
      (is (= 1 (attempts-made))))))

(define-case servers-push-back ()
  "They say when, however long the back-off is, or that it is not to be tried again."
  (with-transport (channel :channel-options (retry-config :initial 100))
      (:ask (failing-first 2 #'double :pushback "10"))
    (attempts-made)
    (is (= 2 (number-of (ask channel (note 1)))))
    (is (= 3 (attempts-made)))
    (is (= 2 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1))
                                    :timeout 20))))
    (is (= 3 (attempts-made))))
  (with-transport (channel :channel-options (retry-config))
      (:ask (failing-first 9 #'double :pushback "-1"))
    (is (eq :unavailable (status-of-error (caught (ask channel (note 1))))))
    (is (= 1 (attempts-made)))))

(define-case many-failures-throttle-retries ()
  (with-transport (channel :channel-options
                           (retry-config
                            :more '(:retry-throttling (:max-tokens 4 :token-ratio 1))))
      (:ask (lambda (note call)
              (declare (ignore call))
              (note-attempt)
              (if (plusp (number-of note)) note (grpc:fail :unavailable "no"))))
    (attempts-made)
    (flet ((tries ()
             (caught (ask channel (note 0)))
             (attempts-made)))
      ;; 4 tokens: the second failure leaves 2, half of them
      (is (= 2 (tries)))
      (is (= 1 (tries)))
      (dotimes (i 3) (ask channel (note 1)))
      (attempts-made)
      (is (= 2 (tries))))))

(define-case one-deadline-is-for-all-attempts ()
  "Also while a call waits for the next: from stubs, as futures and as streams."
  (with-transport (channel :channel-options (retry-config :initial 100))
      (:ask (failing-first 9 #'double) :watch (failing-first 9 #'count-up))
    (attempts-made)
    (flet ((check (function)
             (let ((start (monotonic-ns)))
               (is (eq :deadline-exceeded (status-of-error (caught (funcall function)))))
               (is (< 0.2 (ns-seconds (- (monotonic-ns) start)) 15)))
             (is (= 1 (attempts-made)))))
      (check (lambda () (ask channel (note 1) :timeout 0.3)))
      (check (lambda ()
               (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 0.3))))
      (check (lambda () (numbers (watch channel (note 1) :timeout 0.3)))))))

(define-case calls-that-wait-for-attempts-are-cancelled ()
  (with-transport (channel :channel-options (retry-config :initial 100))
      (:ask (failing-first 9 #'double) :watch (failing-first 9 #'count-up))
    (attempts-made)
    (flet ((check (call)
             (is (wait-until (lambda () (= 1 (aref **attempts** 0)))))
             (sleep 0.05)
             (grpc:cancel call)
             (is (wait-until (lambda () (eq :cancelled (grpc:call-status call)))))
             (is (= 1 (attempts-made)))))
      (check (grpc:call-async #'lab.bench:ask channel (note 1)))
      (let ((call (watch channel (note 1))))
        (grpc:on-message call #'identity)
        (check call)))))

(define-case attempts-under-way-are-cancelled ()
  (let ((cancelled (make-signal)))
    (with-transport (channel :options '(:execution :blocking) :channel-options (retry-config))
        (:ask (lambda (note call)
                (note-attempt)
                (wait-until (lambda () (grpc:cancelled-p call)))
                (signal-it cancelled)
                note))
      (attempts-made)
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
        (is (wait-until (lambda () (= 1 (aref **attempts** 0)))))
        (grpc:cancel call)
        (is (eq :cancelled (status-of-error (caught (grpc:await call :timeout 20)))))
        (is (await-signal cancelled))))))

(define-case methods-have-time-and-limits ()
  "As the service config says, with a retry policy and without."
  (dolist (policy (list '() (getf (first (getf (getf (retry-config) :service-config)
                                               :method-config))
                                  :retry-policy)))
    (with-transport (channel :channel-options
                             `(:service-config
                               (:method-config
                                ((:name (())
                                  :timeout 5 :max-request-message-bytes 1000
                                  :max-response-message-bytes 1000
                                  ,@(and policy (list :retry-policy policy)))))))
        (:ask (lambda (note call)
                (if (plusp (number-of note))
                    (note 1 :body 2000)
                    (note (ceiling (grpc:time-remaining call))))))
      (is (<= 1 (number-of (lab.bench:ask channel (note 0))) 5))
      (is (<= 1 (number-of (lab.bench:ask channel (note 0) :timeout 1000)) 5))
      (is (eq :resource-exhausted
              (status-of-error (caught (lab.bench:ask channel (note 0 :body 2000))))))
      (is (eq :resource-exhausted (status-of-error (caught (lab.bench:ask channel (note 1)))))))))
