;;;; Call credentials and attempts: when, for which attempt and in which thread credentials are
;;;; asked, and the effect of answers that are late or wrong, or that never come.

(in-package #:clgrpc.tests.client)

(defclass told-credentials (grpc:call-credentials)
  ((answer :initarg :answer) ; a function of the request and how many came before it
   (requests :initform '() :accessor told-requests)
   (lock :initform (sb-thread:make-mutex)))
  (:documentation "Call credentials whose answers a test determines."))

(defmethod grpc:get-request-metadata ((credentials told-credentials) request)
  (with-slots (answer requests lock) credentials
    (funcall answer request
             (sb-thread:with-mutex (lock)
               (push request requests)
               (1- (length requests))))))

(defun told-credentials (answer)
  (make-instance 'told-credentials :answer answer))

(defun numbered-credentials ()
  "Call credentials whose tokens are t0, t1 and so on."
  (told-credentials (fn (_request number) `(("authorization" . ,(format nil "t~D" number))))))

(defun policy-config (policy)
  (format nil "{\"methodConfig\":[{\"name\":[{}],~A}]}" policy))

(defparameter *retry-unavailable*
  (policy-config "\"retryPolicy\":{\"maxAttempts\":3,\"initialBackoff\":\"0.01s\",
                    \"maxBackoff\":\"0.01s\",\"backoffMultiplier\":1,
                    \"retryableStatusCodes\":[\"UNAVAILABLE\"]}"))

(defmacro with-told-probe ((channel &rest channel-options) handlers &body body)
  `(with-probe (,channel :channel-options (list :plaintext-credentials t ,@channel-options))
       ,handlers
     ,@body))

(test credentials-are-asked-for-each-attempt
  "Each retry has metadata of its own; the call's other metadata go with all attempts."
  (let ((seen '()) (credentials (numbered-credentials)))
    (with-told-probe (channel :service-config *retry-unavailable* :call-credentials credentials)
        (:ask (lambda (note call)
                (push (list (token-of call)
                            (cdr (assoc "x-own" (grpc:call-metadata call) :test #'string=)))
                      seen)
                (when (< (length seen) 3) (grpc:fail :unavailable "not yet"))
                note))
      (ask channel (note 1) :metadata '(("x-own" . "me")))
      (is (equal '(("t0" "me") ("t1" "me") ("t2" "me")) (reverse seen)))
      (is (= 3 (length (told-requests credentials)))))))

(test functions-are-asked-in-the-callers-thread-first
  "Further attempts ask a function on another thread, which may wait."
  (let ((threads '()) (count 0))
    (with-told-probe (channel :service-config *retry-unavailable*)
        (:ask (handling (note)
                (when (< (incf count) 2) (grpc:fail :unavailable "not yet"))
                note))
      (ask channel (note 1) :call-credentials (lambda (path)
                                                (push sb-thread:*current-thread* threads)
                                                `(("x-path" . ,path))))
      (is (= 2 (length threads)))
      (is (eq sb-thread:*current-thread* (second threads)))
      (is (not (eq sb-thread:*current-thread* (first threads)))))))

(test functions-use-up-the-time-of-a-service-config
  "If a function among the credentials takes longer than the config allows, nothing is sent."
  (let ((calls 0))
    (with-told-probe (channel :service-config (policy-config "\"timeout\":\"0.05s\""))
        (:ask (lambda (note) (incf calls) note))
      (let ((error (caught (lab.bench:ask channel (note 1) ; the call has no time-out of its own
                                          :call-credentials
                                          (fn (_path)
                                            (let ((end (+ (monotonic-ns) 100000000)))
                                              (wait-until (lambda () (> (monotonic-ns) end))))
                                            '())))))
        (is (typep error 'grpc:deadline-exceeded))
        (is (not (grpc:rpc-error-sent-p error)))
        (is (zerop calls))))))

(test what-credentials-are-asked-for
  (let ((credentials (numbered-credentials)))
    (with-told-probe (channel :authority "greeters.example:443" :call-credentials credentials)
        (:ask #'double)
      (ask channel (note 1))
      (ask channel (note 1) :authority "other.example:8443")
      (destructuring-bind (second first) (told-requests credentials)
        (is (equal "/lab.Bench/Ask" (grpc:credentials-request-path first)))
        (is (equal "greeters.example:443" (grpc:credentials-request-authority first)))
        (is (equal "https://greeters.example/lab.Bench"
                   (grpc:credentials-request-audience first)))
        (is (equal "https://other.example:8443/lab.Bench"
                   (grpc:credentials-request-audience second)))
        (is (not (grpc:credentials-request-secure-p first))))))
  (let ((credentials (numbered-credentials)))
    (with-probe (channel :options (list :credentials (credentials "server"))
                         :channel-options (list :credentials (trusting nil)
                                                :call-credentials credentials))
        (:ask #'double)
      (ask channel (note 1))
      (is (grpc:credentials-request-secure-p (first (told-requests credentials)))))))

(test credentials-that-answer-later
  "A call waits for its credentials, and no other call with it; all four kinds, and futures."
  (let ((futures '()))
    (with-told-probe (channel) (:ask #'tell-token :watch #'count-up :collect #'add-up :chat #'echo)
      (let ((credentials (told-credentials (fn (_request _number)
                                             (first (push (grpc:make-future) futures))))))
        (flet ((settle ()
                 (wait-until (lambda () futures))
                 (grpc:resolve-future (pop futures) '(("authorization" . "late")))))
          (let ((call (grpc:call-async #'lab.bench:ask channel (note 1)
                                       :call-credentials credentials)))
            (wait-until (lambda () futures))
            (is (equal "none" (lab:note-text (ask channel (note 1)))))
            (is (not (grpc:future-done-p call)))
            (settle)
            (is (equal "late" (lab:note-text (grpc:await call :timeout 5)))))
          (macrolet ((settled (form)
                       `(let ((thread (sb-thread:make-thread #'settle)))
                          (prog1 ,form (sb-thread:join-thread thread)))))
            (is (equal "late" (lab:note-text (settled (ask channel (note 1)
                                                           :call-credentials credentials)))))
            (is (equal '(0 1 2) (settled (numbers (watch channel (note 3)
                                                         :call-credentials credentials)))))
            (is (= 3 (number-of (settled (collect channel (list (note 1) (note 2))
                                                  :call-credentials credentials)))))
            (is (equal '(7 8) (settled (numbers (chat channel (list (note 7) (note 8))
                                                      :call-credentials credentials)))))))))))

(test credentials-that-never-answer
  "The deadline ends a call that waits for its credentials, and so does its channel's end; later
answers of the credentials are dropped."
  (let* ((futures '())
         (credentials (told-credentials (fn (_request _number)
                                          (first (push (grpc:make-future) futures))))))
    (with-told-probe (channel :call-credentials credentials) (:ask #'double)
      (let ((error (caught (ask channel (note 1) :timeout 0.05))))
        (is (typep error 'grpc:deadline-exceeded))
        (is (eq :credentials (getf (grpc:rpc-error-stages error) :stage)))
        (is (search "waiting for its call credentials" (princ-to-string error))))
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1)))
            (other (grpc:call-async #'lab.bench:ask channel (note 1))))
        (wait-until (lambda () (= 3 (length futures))))
        (grpc:cancel other)
        (is (typep (caught (grpc:await other :timeout 5)) 'grpc:cancelled))
        (let ((core (client::channel-core channel)))
          (grpc:close-channel channel)
          (is (typep (caught (grpc:await call :timeout 5)) 'grpc:rpc-error))
          (dolist (future futures) (grpc:resolve-future future '(("authorization" . "x"))))
          (is (not (client::busy-p core))))))))

(test credentials-that-end-their-call
  "If credentials cancel their own call while they are asked, they keep no reference to it."
  (let ((never (grpc:make-future)) (made nil))
    (with-told-probe (channel :observer (grpc:make-observer :call-made (lambda (call)
                                                                         (setf made call)))
                              :call-credentials (told-credentials
                                                 (fn (_request _number)
                                                   (grpc:cancel made)
                                                   never)))
        (:ask #'double)
      (is (typep (caught (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1))
                                     :timeout 20))
                 'grpc:cancelled))
      (eventually (null (loop:future-completions never))))))

(test credentials-that-fail-where-attempts-begin
  "The call gets their status, unless only applications may give it (gRFC A54). Another error gives
:unauthenticated, metadata that cannot be sent :internal; at once or later alike."
  (flet ((failing (answer)
           (let ((error nil))
             (with-told-probe (channel :call-credentials (told-credentials answer)) (:ask #'double)
               (setf error (caught (ask channel (note 1)))))
             (is-false (grpc:rpc-error-sent-p error))
             (grpc:rpc-error-status error))))
    (loop for (expected make)
            in `((:unavailable ,(lambda () (grpc:make-rpc-error :unavailable :message "x")))
                 (:permission-denied
                  ,(lambda () (grpc:make-rpc-error :permission-denied :message "x")))
                 (:internal ,(lambda () (grpc:make-rpc-error :not-found :message "x")))
                 (:unauthenticated ,(lambda () (make-condition 'simple-error
                                                               :format-control "x"))))
          do (is (eq expected (failing (fn (_request _number) (error (funcall make))))))
             (is (eq expected (failing (fn (_request _number)
                                         (let ((future (grpc:make-future)))
                                           (grpc:reject-future future (funcall make))
                                           future))))))
    (dolist (bad '((("Upper" . "x")) (("a" . 5)) (("grpc-x" . "x")) 7 (("a" . "b") . "c")))
      (is (eq :internal (failing (fn (_request _number) bad)))
          "~S" bad))))

(defun descend (depth)
  "Exhaust the stack."
  (if (minusp depth) depth (1+ (descend (1+ depth)))))

(test credentials-that-fail-in-every-way
  "An error that cannot be printed and a full stack count as failures. So does the end of the thread
on which a function is called for a retry; the call gets that failure at once."
  (let ((*error-output* (make-broadcast-stream))) ; SBCL reports the full stack
    (loop for (expected fail)
            in `((:unauthenticated ,(lambda () (error 'support:unprintable)))
                 (:unauthenticated ,(lambda () (descend 1)))
                 (:unavailable ,#'sb-thread:abort-thread))
          for retried in '(t t nil)
          do (let ((fail fail))
               (flet ((failing (credentials)
                        (let ((count 0))
                          (with-told-probe (channel :call-credentials credentials
                                                    :service-config *retry-unavailable*)
                              (:ask (handling ()
                                      (incf count)
                                      (grpc:fail :unavailable "again")))
                            (values (grpc:rpc-error-status
                                     (caught (ask channel (note 1) :timeout 60)))
                                    count)))))
                 (when retried
                   (is (eq expected (failing (told-credentials (fn (_request _number)
                                                                 (funcall fail)))))))
                 (let ((asked 0))
                   (multiple-value-bind (status count)
                       (failing (fn (_path) (when (< 1 (incf asked)) (funcall fail))))
                     (is (eq expected status))
                     (is (= 1 count)))))))))

(test policies-judge-credentials-that-fail
  "A retry policy begins another attempt, for which the credentials are asked again."
  (let ((credentials (told-credentials (fn (_request number)
                                         (if (< number 2)
                                             (grpc:fail :unavailable "no token yet")
                                             '(("authorization" . "t")))))))
    (with-told-probe (channel :service-config *retry-unavailable* :call-credentials credentials)
        (:ask #'tell-token)
      (is (equal "t" (lab:note-text (ask channel (note 1)))))
      (is (= 3 (length (told-requests credentials))))))
  (let ((credentials (told-credentials (fn (_request _number) (error "never")))))
    (with-told-probe (channel :service-config *retry-unavailable* :call-credentials credentials)
        (:ask #'tell-token)
      (is (typep (caught (ask channel (note 1))) 'grpc:unauthenticated))
      (is (= 1 (length (told-requests credentials)))))))

(test hedges-ask-their-own-credentials
  (let ((credentials (numbered-credentials)) (seen '()) (lock (sb-thread:make-mutex)))
    (with-told-probe (channel :call-credentials credentials
                              :service-config
                              (policy-config "\"hedgingPolicy\":{\"maxAttempts\":3,
                                                \"hedgingDelay\":\"20s\",
                                                \"nonFatalStatusCodes\":[\"UNAVAILABLE\"]}"))
        (:ask (lambda (note call)
                (when (< (sb-thread:with-mutex (lock)
                           (push (token-of call) seen)
                           (length seen))
                         3)
                  (grpc:fail :unavailable "x"))
                note))
      (ask channel (note 1))
      (is (equal '("t0" "t1" "t2") (reverse seen)))
      (is (= 3 (length (told-requests credentials)))))))

(test a-hedge-whose-credentials-answer-too-late-does-not-begin
  "The first attempt was answered before: its stream continues, whatever the credentials answer."
  (dolist (settle (list (lambda (future) (grpc:resolve-future future '(("authorization" . "t1"))))
                        (lambda (future)
                          (grpc:reject-future future (make-condition 'simple-error
                                                                     :format-control "x")))))
    (let* ((future (grpc:make-future))
           (credentials (told-credentials (fn (_request number) (if (zerop number) '() future))))
           (count (list 0))
           (settled (make-signal)))
      (with-told-probe (channel :call-credentials credentials
                                :service-config (hedging-config :attempts 2 :delay "0.02s"))
          (:watch (lambda (note call)
                    (sb-ext:atomic-incf (car count))
                    (wait-until (lambda () (rest (told-requests credentials))))
                    (grpc:send call note)
                    (await-signal settled)
                    (grpc:send call note)))
        (let ((call (watch channel (note 1))) (taken (make-signal)))
          (is (eql 1 (number-of (grpc:receive call))))
          (funcall settle future)
          ;; the loop first handles the answer of the credentials
          (loop:post (client::wire-call-loop call) (lambda () (signal-it taken)))
          (is-true (await-signal taken))
          (is (= 1 (length (client::client-retries-running (client::call-retries call)))))
          (signal-it settled)
          (is (equal '(1) (numbers call)))
          (is (eq :ok (grpc:call-status call)))
          (is (= 1 (car count))))))))

(test calls-that-a-channel-gets-when-it-has-ended-are-cancelled
  "They end as earlier calls do; their credentials, which may answer after its loop, are not asked."
  (dolist (credentials (list nil (told-credentials (fn (_request _number) (grpc:make-future)))))
    (with-core (core puppet :pick-first)
      (client::shut-down core)
      (let ((call (begin-ask core :call-credentials credentials)))
        (is (eq :cancelled (grpc:call-status call)))
        (when credentials (is (null (told-requests credentials))))))))

(defun fixed-a (path)
  (declare (ignore path))
  '(("x-who" . "a")))

(test credentials-of-channel-and-call
  "The metadata of both are sent, the channel's first; if one part fails, the attempt fails."
  (flet ((fixed (name) (lambda (path) (declare (ignore path)) `(("x-who" . ,name))))
         (who (call) (loop for (name . value) in (grpc:call-metadata call)
                           when (string= "x-who" name) collect value)))
    (with-told-probe (channel :call-credentials
                              (grpc:compose-credentials #'fixed-a (numbered-credentials)))
        (:ask (lambda (note call)
                (note (number-of note) :text (format nil "~{~A~^ ~}~@[ ~A~]" (who call)
                                                     (token-of call)))))
      (is (equal "a t0" (lab:note-text (ask channel (note 1)))))
      (is (equal "a b t1" (lab:note-text (ask channel (note 1) :call-credentials (fixed "b")))))
      (is (typep (caught (ask channel (note 1)
                              :call-credentials (told-credentials
                                                 (fn (_request _number)
                                                   (grpc:fail :unavailable "x")))))
                 'grpc:unavailable)))))

(test what-is-no-credentials-is-misuse
  (dolist (bad '("token" 5 (1 2)))
    (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :call-credentials bad))
    (signals grpc:misuse (grpc:compose-credentials bad))
    (with-told-probe (channel) (:ask #'double)
      (signals grpc:misuse (ask channel (note 1) :call-credentials bad))))
  (signals error (grpc:bearer-token 5)))

(test credentials-are-not-asked-on-plaintext
  (let ((credentials (numbered-credentials)))
    (with-probe (channel :channel-options (list :call-credentials credentials)) (:ask #'double)
      (is (typep (caught (ask channel (note 1))) 'grpc:unauthenticated))
      (is (null (told-requests credentials))))))

(test credentials-do-not-keep-calls
  "Calls that have ended by their deadlines or were cancelled are collected with their requests,
even while their credentials have not answered."
  (let* ((futures '()) (pointers '())
         (credentials (told-credentials (fn (_request _number)
                                          (first (push (grpc:make-future) futures))))))
    (flet ((end-one (channel timeout)
             (let ((call (grpc:call-async #'lab.bench:ask channel (note 1) :timeout timeout)))
               (push (sb-ext:make-weak-pointer call) pointers)
               (unless timeout (grpc:cancel call))
               (is (typep (caught (grpc:await call :timeout 5)) 'grpc:rpc-error)))))
      (with-told-probe (channel :call-credentials credentials) (:ask #'double)
        (dotimes (i 20)
          (end-one channel nil)
          (end-one channel 0.001))
        (sb-ext:gc :full t)
        ;; some may be kept by what is left of them on a stack
        (let ((kept (count-if #'sb-ext:weak-pointer-value pointers)))
          (is (> 10 kept) "~D of 40 calls are kept" kept))
        (dolist (future futures) (grpc:resolve-future future '()))
        (eventually (not (client::busy-p (client::channel-core channel))))))))

(test idle-channels-wait-for-credentials
  "A channel does not become idle while a call of it waits for its credentials."
  (let* ((future (grpc:make-future))
         (credentials (told-credentials (fn (_request number) (if (zerop number) future '())))))
    (with-told-probe (channel :call-credentials credentials) (:ask #'double)
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
        (wait-until (lambda () (told-requests credentials)))
        (eventually (client::busy-p (client::channel-core channel)))
        (grpc:resolve-future future '())
        (is (= 2 (number-of (grpc:await call :timeout 5))))
        (eventually (not (client::busy-p (client::channel-core channel))))))))
