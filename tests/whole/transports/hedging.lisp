;;;; Calls that are tried again while an attempt runs (gRFC A6).

(in-package #:clgrpc.tests.transports)

(defun hedging-config (&key (attempts 3) (delay 0.02) more)
  "The keywords of a channel whose service config has a hedging policy for all methods."
  (list :service-config
        (list* :method-config
               `((:name (())
                  :hedging-policy (:max-attempts ,attempts :hedging-delay ,delay
                                   :non-fatal-status-codes (:unavailable))))
               more)))

(defmacro with-hedging ((channel cancelled &rest config) (&rest handlers) &body body)
  "Evaluate BODY with CHANNEL, of HEDGING-CONFIG with CONFIG. HANDLERS and CANCELLED, a signal, are
as HANGING-FIRST and others here take them."
  `(let ((,cancelled (make-signal)))
     (declare (ignorable ,cancelled))
     (with-transport (,channel :channel-options (hedging-config ,@config))
         ,handlers
       (attempts-made)
       ,@body)))

(defun hang (call cancelled)
  "What a handler returns that answers never; it signals CANCELLED when CALL is cancelled."
  (grpc:on-cancel call (lambda () (signal-it cancelled)))
  call)

(defun attempts-before (call)
  "How many attempts came before the one that a handler has as CALL, as its client says."
  (parse-integer (or (cdr (assoc "grpc-previous-rpc-attempts" (grpc:call-metadata call)
                                 :test #'string=))
                     "0")))

(defun hanging-first (count handler cancelled)
  "HANDLER, which hangs for the first COUNT attempts. A later one, which a busy machine may begin
before them, answers when they have begun: an attempt that is cancelled before has no handler."
  (lambda (request call)
    (note-attempt)
    (cond ((< (attempts-before call) count)
           (hang call cancelled))
          (t
           (wait-until (lambda () (< count (attempts-so-far))))
           (funcall handler request call)))))

(define-case the-first-answer-has-the-call ()
  "Of calls of all kinds; the attempt that has lost is cancelled."
  (with-hedging (channel cancelled :attempts 2) ; a third would begin if the answer took its time
      (:ask (hanging-first 1 #'double cancelled) :watch (hanging-first 1 #'count-up cancelled)
       :collect (hanging-first 1 #'add-up cancelled) :chat (hanging-first 1 #'echo cancelled))
    (flet ((check (expected value)
             (is (equal expected value))
             (is (await-signal cancelled))
             (is (= 2 (attempts-made)))))
      (check 14 (number-of (ask channel (note 7))))
      (check 14 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 7))
                                       :timeout 20)))
      (check '(0 1 2) (numbers (watch channel (note 3))))
      (check 6 (number-of (collect channel (notes 1 2 3))))
      (check 6 (number-of (collect channel (generator (notes 1 2 3)))))
      (check 6 (number-of (grpc:receive (send-all (collect channel :open) (notes 1 2 3)))))
      (check '(1 2 3) (numbers (chat channel (notes 1 2 3))))
      (check '(1 2 3) (numbers (send-all (chat channel :open) (notes 1 2 3)))))))

(define-case an-answer-within-the-delay-needs-no-hedge ()
  (with-hedging (channel cancelled :delay 5)
      (:ask (hanging-first 0 #'double cancelled) :chat (hanging-first 0 #'echo cancelled))
    (is (= 14 (number-of (ask channel (note 7)))))
    (is (equal '(1 2) (numbers (send-all (chat channel :open) (notes 1 2)))))
    (is (= 2 (attempts-made)))))

(define-case hedges-begin-at-once-without-a-delay ()
  "They tell handlers how many came before."
  (let ((seen (list '())))
    (with-hedging (channel cancelled :delay 0)
        (:ask (lambda (note call)
                (let ((number (cdr (assoc "grpc-previous-rpc-attempts" (grpc:call-metadata call)
                                          :test #'string=))))
                  (sb-ext:atomic-push number (car seen))
                  (if (= 2 (note-attempt)) note (hang call cancelled)))))
      (is (eql 7 (number-of (ask channel (note 7) :timeout 20))))
      (is (await-signal cancelled :count 2)))
    (is (equal '("1" "2" nil) (sort (copy-list (car seen)) #'string< :key #'princ-to-string)))))

(define-case failures-of-hedges ()
  "One that is not fatal has the next begin at once; a fatal one ends the call, and all others."
  (with-hedging (channel cancelled :delay 8)
      (:ask (failing-first 1 #'double) :collect (failing-after 1 1 #'add-up))
    (is (= 14 (number-of (ask channel (note 7)))))
    (is (= 2 (attempts-made)))
    (is (= 6 (number-of (grpc:receive (send-all (collect channel :open) (notes 1 2 3))))))
    (is (= 2 (attempts-made))))
  (with-hedging (channel cancelled :delay 8)
      (:ask (failing-first 9 #'double))
    (let ((error (caught (ask channel (note 7)))))
      (is (eq :unavailable (status-of-error error)))
      (is (equal '(0 1 2) (mapcar (lambda (attempt) (getf attempt :number))
                                  (grpc:rpc-error-attempts error)))))
    (is (= 3 (attempts-made))))
  (with-hedging (channel cancelled :attempts 2)
      (:ask (fn (_note call)
              (when (= 1 (note-attempt)) (grpc:fail :invalid-argument "fatal"))
              (hang call cancelled)))
    (is (eq :invalid-argument (status-of-error (caught (ask channel (note 7))))))
    (is (await-signal cancelled))
    (is (= 2 (attempts-made)))))

(define-case servers-push-hedges-back ()
  (with-hedging (channel cancelled :delay 0.2)
      (:ask (failing-first 9 #'double :pushback "-1"))
    (is (eq :unavailable (status-of-error (caught (ask channel (note 7))))))
    (is (= 1 (attempts-made))))
  (with-hedging (channel cancelled :delay 8)
      (:ask (failing-first 1 #'double :pushback "10"))
    (is (= 14 (number-of (ask channel (note 7)))))
    (is (= 2 (attempts-made)))))

(define-case attempts-go-on-after-a-pushback ()
  "Which says that there are to be no more. If it comes later than the next attempt is due, since
the machine is busy, that has begun, and the call is made once more."
  (let ((first nil))
    (with-hedging (channel cancelled)
        (:ask (lambda (note call)
                (ecase (note-attempt)
                  (0 (setf first call))
                  (1 (grpc:after first 0.1 (lambda () (grpc:reply first note)))
                     (grpc:fail :unavailable "no"
                                :trailers '(("grpc-retry-pushback-ms" . "-1"))))
                  (2 (hang call cancelled)))))
      (is (loop repeat 20
                do (is (= 7 (number-of (ask channel (note 7) :timeout 20))))
                  thereis (= 2 (attempts-made)))))))

(define-case failures-throttle-hedges ()
  "At half of the tokens there are no more."
  (with-hedging (channel cancelled :attempts 5 :delay 8
                                   :more '(:retry-throttling (:max-tokens 4 :token-ratio 0.1)))
      (:ask (failing-first 99 #'double))
    (flet ((attempts ()
             (caught (ask channel (note 7)))
             (attempts-made)))
      (is (= 2 (attempts)))
      (is (= 1 (attempts))))))

(define-case hedges-are-cancelled ()
  "All of them, by the client and by the call's one deadline."
  (with-hedging (channel cancelled :delay 0.01)
      (:ask (hanging-first 9 #'double cancelled) :chat (hanging-first 9 #'echo cancelled))
    (flet ((check (call status)
             (eventually (= 3 (aref **attempts** 0)))
             (when (eq :cancelled status) (grpc:cancel call))
             (eventually (eq status (grpc:call-status call)))
             (is (await-signal cancelled :count 3))
             (is (= 3 (attempts-made)))))
      (check (grpc:call-async #'lab.bench:ask channel (note 1)) :cancelled)
      (check (grpc:call-async #'lab.bench:ask channel (note 1) :timeout 0.5) :deadline-exceeded)
      (let ((call (chat channel :open)))
        (grpc:send call (note 1))
        (check call :cancelled)))))

(define-case hedges-get-all-requests ()
  "Those that were sent before one has begun, and those that come later."
  (let ((lists (make-array 2 :initial-element '())) (both (make-signal)))
    (with-hedging (channel cancelled :attempts 2)
        (:collect (handling (stream)
                    (let ((number (note-attempt)))
                      (when (= 1 number) (signal-it both))
                      (grpc:do-messages (note stream)
                        (push (number-of note) (aref lists number)))
                      (note number))))
      (let ((call (collect channel :open :timeout 20)))
        (grpc:send call (note 1))
        (is (await-signal both))
        (grpc:send call (note 2))
        (eventually (and (equal '(2 1) (aref lists 0)) (equal '(2 1) (aref lists 1))))
        (grpc:close-send call)
        (is (<= 0 (number-of (grpc:receive call)) 1))))))

(define-case hedged-requests-are-kept-as-they-were (:except (:in-process-share))
  "A later change by the caller, or by the handler of an attempt, is not seen."
  (let ((seen '()) (first (make-signal)) (go (make-signal)))
    (with-hedging (channel cancelled :attempts 2 :delay 8)
        (:ask (handling (note)
                (push (number-of note) seen)
                (setf (lab:note-number note) 100)
                (when (zerop (note-attempt))
                  (signal-it first)
                  (await-signal go)
                  (grpc:fail :unavailable "once"))
                note))
      (let* ((note (note 1))
             (call (grpc:call-async #'lab.bench:ask channel note)))
        (is (await-signal first))
        (setf (lab:note-number note) 2)
        (signal-it go)
        (is (= 100 (number-of (grpc:await call :timeout 20))))))
    (is (equal '(1 1) seen))))
