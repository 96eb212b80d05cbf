;;;; The current span: WITH-SPAN, callbacks, futures, threads, the log.

(in-package #:clgrpc.tests.trace)

(defun here ()
  "The id of the current span, or nil."
  (let ((context (grpc:current-trace)))
    (and context (grpc:span-id context))))

(test spans-nest
  (let ((tracing (tracing)))
    (is (null (grpc:current-trace)))
    (let ((outer nil) (inner nil))
      (is (equal '(1 2)
                 (multiple-value-list
                  (grpc:with-span ("outer" :kind :producer :attributes '("a" 1) :tracing tracing)
                    (setf outer (here))
                    (grpc:with-span ("inner")
                      (setf inner (here))
                      (grpc:set-span-attribute "b" 2)
                      (grpc:add-span-event "tick" "n" 1))
                    (is (equal outer (here)))
                    (values 1 2)))))
      (is (null (here)))
      (destructuring-bind (second first) (trace:drain tracing)
        (is (string= "outer" (trace:span-name first)))
        (is (eq :producer (trace:span-kind first)))
        (is (equal '(("a" . 1)) (trace:span-attributes first)))
        (is (equal outer (id-of first)))
        (is (equal inner (id-of second)))
        (is-true (child-p second first))
        (is (equal '(("b" . 2)) (trace:span-attributes second)))
        (is (equal '(("tick" ("n" . 1))) (moments second)))
        (is (eq :unset (trace:span-status second)))))))

(test an-error-is-the-status-of-its-span
  (let ((tracing (tracing)))
    (signals error (grpc:with-span ("work" :tracing tracing) (error "it broke")))
    (catch 'out (grpc:with-span ("other" :tracing tracing)
                  (ignore-errors (error "handled"))
                  (throw 'out nil)))
    (destructuring-bind (broken left) (trace:drain tracing)
      (is (eq :error (trace:span-status broken)))
      (is (search "it broke" (trace:span-status-text broken)))
      (is (string= "exception" (first (first (moments broken)))))
      (is (eq :unset (trace:span-status left))))))

(test a-timeout-is-the-status-of-the-span-that-it-leaves
  "It is not an ERROR, but the span has failed."
  (let ((tracing (tracing)))
    (signals sb-ext:timeout
      (grpc:with-span ("late" :tracing tracing) (error 'sb-ext:timeout :seconds 1)))
    (is (eq :error (trace:span-status (first (trace:drain tracing)))))))

(test spans-that-are-not-sampled-are-current-as-well
  (let ((tracing (tracing :sampler :always-off)))
    (grpc:with-span ("work" :tracing tracing)
      (is-false (grpc:trace-sampled-p (grpc:current-trace)))
      (grpc:set-span-attribute "a" 1)
      (let ((outer (grpc:trace-id (grpc:current-trace))))
        (grpc:with-span ("inner")
          (is (equal outer (grpc:trace-id (grpc:current-trace)))))))
    (is (null (trace:drain tracing)))))

(test a-thread-gets-its-parent-by-hand
  (let ((tracing (tracing)) (elsewhere :unknown))
    (grpc:with-span ("outer" :tracing tracing)
      (let ((context (grpc:current-trace)))
        (sb-thread:join-thread
         (in-thread
           (setf elsewhere (grpc:current-trace))
           (grpc:with-span ("inner" :parent context :tracing tracing :links (list context)))))))
    (is (null elsewhere))
    (destructuring-bind (inner outer) (trace:drain tracing)
      (is-true (child-p inner outer))
      (is (= 1 (length (trace:span-links inner)))))
    (signals misuse (grpc:with-span ("work" :parent "x" :tracing tracing)))))

(test calls-within-a-span-are-its-children
  (with-traced (channel tracing) (:ask #'double)
    (grpc:with-span ("work" :tracing tracing)
      (ask channel (note 1))
      (grpc:await (grpc:call-async #'lab.bench:ask channel (note 2))))
    (let* ((spans (drained tracing 7)) (work (named "work" spans)))
      (is (= 7 (length spans)))
      (is (= 2 (count-if (lambda (span) (child-p span work)) (all-named "Sent." spans)))))))

(test a-handler-in-its-callers-thread-is-not-in-the-callers-span
  (let ((seen nil))
    (with-traced (channel tracing :place :image)
        (:ask (handling (note)
                (setf seen (here))
                note))
      (grpc:with-span ("work" :tracing tracing)
        (ask channel (note 1)))
      (let ((spans (drained tracing 4)))
        (is (equal seen (id-of (named "Recv." spans))))))))

(test callbacks-of-a-handler-are-its-call
  "In reactive handlers, timers and ends the call is the current span."
  (let ((seen (list '())))
    (with-traced (channel tracing)
        (:ask (lambda (note call)
                (sb-ext:atomic-push (here) (car seen))
                (grpc:on-end call (lambda () (sb-ext:atomic-push (here) (car seen))))
                (grpc:after call 0.001 (lambda ()
                                         (sb-ext:atomic-push (here) (car seen))
                                         (grpc:reply call note)))
                call))
      (ask channel (note 1))
      (eventually (= 3 (length (car seen))))
      (let ((span (named "Recv." (drained tracing 3))))
        (is (equal (make-list 3 :initial-element (id-of span)) (car seen)))))))

(test callbacks-and-futures-of-a-clients-call-keep-its-parent
  (let ((seen (list '())))
    (with-traced (channel tracing) (:ask #'double :chat #'echo)
      (grpc:with-span ("work" :tracing tracing)
        (let ((call (chat channel :open)))
          (grpc:on-message call (lambda (message)
                                  (when message
                                    (sb-ext:atomic-push (here) (car seen)))))
          (grpc:send call (note 1))
          (grpc:close-send call)
          (eventually (car seen)))
        (grpc:attach (grpc:call-async #'lab.bench:ask channel (note 2))
                     (fn (_value _error) (sb-ext:atomic-push (here) (car seen))))
        (eventually (= 2 (length (car seen)))))
      (let ((work (named "work" (drained tracing 7))))
        (is (equal (list (id-of work) (id-of work)) (car seen)))))))

(test a-future-of-ones-own-keeps-what-was-current
  (let ((tracing (tracing)) (seen nil) (outer nil) (future (grpc:make-future)))
    (grpc:with-span ("work" :tracing tracing)
      (setf outer (here))
      (grpc:attach future (fn (_value _error) (setf seen (here)))))
    (grpc:resolve-future future 1)
    (is (equal outer seen))))

(test events-of-the-log-have-the-ids
  (let ((events (list '())) (seen nil))
    (flet ((listener (level event &rest plist)
             (declare (ignore level))
             (sb-ext:atomic-push (cons event plist) (car events))))
      (with-traced (channel tracing)
          (:ask (handling ()
                  (setf seen (here))
                  (error "it broke")))
        (grpc:add-log-listener #'listener)
        (unwind-protect
             (let ((*log-function* nil))
               (setf (grpc:tracers) '(:call))
               (signals grpc:internal (ask channel (note 1))))
          (setf (grpc:tracers) '())
          (grpc:remove-log-listener #'listener))
        (let ((error (rest (assoc :handler-error (car events)))))
          (is (equal seen (getf error :span-id))))
        (let* ((spans (drained tracing 3)) (trace (trace-of (first spans))))
          (dolist (event (car events))
            (when (member (first event) '(:call-begun :call-ended :call-on-stream))
              (is (equal trace (getf (rest event) :trace-id)) "~S" event))))))))

(defmacro with-heard ((events) &body body)
  "Evaluate BODY while the events of the log are kept in EVENTS, a variable, newest first: lists of
the event and its data."
  `(flet ((listener (level event &rest plist)
            (declare (ignore level))
            (sb-ext:atomic-push (cons event plist) (car ,events))))
     (grpc:add-log-listener #'listener)
     (unwind-protect (let ((*log-function* nil)) ,@body)
       (grpc:remove-log-listener #'listener))))

(test events-of-what-goes-wrong-in-a-call-have-its-ids
  "Truncated statuses, failing interceptors of attempts; for calls that are recorded or not."
  (dolist (sampler '(:always-on :always-off))
    (let ((events (list '())) (traces '()))
      (with-heard (events)
        (with-traced (channel tracing
                      :tracing-options (:sampler sampler)
                      :channel-options (:max-header-list-octets 1024
                                        :attempt-interceptors
                                        (list (lambda (attempt)
                                                (when (grpc:call-value (grpc:attempt-call attempt)
                                                                       'broken)
                                                  (error "it broke"))))))
            (:ask (handling ()
                    (grpc:fail :not-found "no"
                               :trailers `(("x-long" . ,(make-string 2000
                                                                     :initial-element #\x))))))
          (loop for options in '(() (:values (broken t)))
                do (grpc:with-span ("outside" :tracing tracing)
                     (push (grpc:trace-id (grpc:current-trace)) traces)
                     (signals grpc:rpc-error (apply #'ask channel (note 1) options))))))
      (loop for name in '(:attempt-interceptor-error :status-cut)
            for trace in traces
            for event = (rest (assoc name (car events)))
            do (is (equal trace (getf event :trace-id)) "~S ~S" name event)))))

(test exemplars-are-of-recorded-calls
  (let ((ids '()))
    (flet ((exemplar (sampler)
             (let* ((tracing (tracing :sampler sampler))
                    (observer (grpc:make-observer
                               :call-ended (lambda (call)
                                             (push (grpc:trace-exemplar call) ids)))))
               (with-probe (channel :channel-options (list :observer (list tracing observer)))
                   (:ask #'double)
                 (ask channel (note 1)))
               (values (pop ids) (named "Sent." (or (trace:drain tracing)
                                                    (return-from exemplar (values nil nil))))))))
      (multiple-value-bind (alist span) (exemplar :always-on)
        (is (equal `(("trace_id" . ,(trace-of span)) ("span_id" . ,(id-of span))) alist)))
      (is (null (exemplar :always-off))))))
