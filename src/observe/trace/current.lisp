;;;; The current span of a thread: the parent of the calls and spans that begin there. The current
;;;; span is that of the innermost WITH-SPAN, or that of the call whose user code runs. The call is
;;;; known without a binding of ours, since user code always runs with its call as the current one
;;;; (CURRENT-CALL). A SCOPE of WITH-SPAN counts only while the call in which it began is current.
;;;; So a span does not affect a handler that runs within its caller's WITH-SPAN, nor a handler that
;;;; a waiting handler's thread runs.
;;;;
;;;; A callback of a client's call runs with that call as the current one. Calls that the callback
;;;; makes have the same parent as that call, as if they were made at the same place; if that call
;;;; is a root, it is their parent. Functions attached to futures keep the span that was current
;;;; when they were attached.

(in-package #:clgrpc.trace)

(defstruct (scope (:constructor make-scope (call context tracing span)) (:copier nil))
  "The context that WITH-SPAN, or a future, has made current."
  (call nil :type (or null call) :read-only t) ; the scope counts only while this call is current
  (context nil :type (or null trace-context) :read-only t) ; the current span or context
  (tracing nil :type (or null tracing) :read-only t) ; the tracing of spans below it
  ;; the context's span, if it is recorded in this process
  (span nil :type (or null span) :read-only t))

(declaim (sb-ext:freeze-type scope))

(define-printer (scope scope)
  "~A" (scope-context scope))

(defvar *scope* nil "The innermost SCOPE of this thread; nil if the thread has none.")

(defun scope-here ()
  "The scope that counts on this thread now, or nil."
  (let ((scope *scope*))
    (and scope (eq (scope-call scope) method:*call*) scope)))

(defun record-here ()
  "The RECORD of the call whose user code runs on this thread, or nil; a context if that call has
not begun."
  (when-let ((call method:*call*))
    (or (call-record call)
        ;; a server within the image that traces nothing passes on what its client traces
        (and (not (rpc:client-p call))
             (when-let ((other (operate other-end call)))
               (call-record (attempt:attempt-of other)))))))

(defun current-context ()
  "Return the value of CURRENT-TRACE; or a bare context, for which CURRENT-TRACE returns nil."
  (if-let ((scope (scope-here)))
    (scope-context scope)
    (let ((record (record-here)))
      (cond ((not (record-p record)) record)
            ((and (eq record (call-record method:*call*)) (rpc:client-p method:*call*))
             (or (record-parent record) (record-context record)))
            (t (record-context record))))))

(defun current-trace ()
  "Return the trace context of this thread: of the innermost WITH-SPAN, or of the call whose handler
or callback runs. Return nil if there is no such span or call, or if the call is not traced.
TRACE-ID, SPAN-ID, TRACE-SAMPLED-P and TRACE-STATE read it; :parent of WITH-SPAN takes it, such as
on another thread. From any thread."
  (let ((context (current-context)))
    (if (and context (bare-p context)) nil context)))

(defun current-tracing ()
  "The tracing of this thread's current span or context; nil without one."
  (if-let ((scope (scope-here)))
    (scope-tracing scope)
    (let ((record (record-here)))
      (if (record-p record) (record-tracing record) nil))))

(defun current-span ()
  "Return the current span of this thread, or nil if no span is recorded here."
  (if-let ((scope (scope-here)))
    (scope-span scope)
    (let ((record (record-here)))
      (and (record-p record) (record-span record)))))

(defun carry (function)
  "A function that calls FUNCTION, which has two arguments, with the present current span, later and
perhaps on another thread."
  (declare (type function function))
  (let ((context (current-context)))
    (if (null context)
        function
        (let ((tracing (current-tracing)) (span (current-span)))
          (lambda (value error)
            (let ((*scope* (make-scope method:*call* context tracing span)))
              (funcall function value error)))))))

;;; Spans of users

(defun end-user-span (tracing queue span error)
  "End SPAN of TRACING, because of ERROR unless that is nil."
  (when error
    (let ((limits (tracing-limits tracing)))
      (add-event span "exception"
                 (attribute-alist
                  (list "exception.type" (bounded-text (type-of error) :limit 200)
                        "exception.message" (bounded-text error :limit 1000))
                  limits))
      (put-status span :error (bounded-text error :limit 1000))))
  (finish-span tracing queue span))

(defun call-with-recorded-span (record name kind attributes links function)
  "As CALL-WITH-SPAN, for a span that is recorded."
  (let* ((tracing (record-tracing record))
         (queue (record-queue record))
         (span (begin-record-span record name kind))
         (failure nil)
         (done nil))
    (loop for (name value) on attributes by #'cddr do (put-attribute span name value))
    (dolist (context links) (add-link span context '()))
    (unwind-protect
         (let ((*scope* (make-scope method:*call* (record-context record) tracing span)))
           ;; also conditions other than an ERROR, such as the timeout of a WITH-TIMEOUT around BODY
           (handler-bind ((serious-condition (lambda (condition) (setf failure condition))))
             (multiple-value-prog1 (funcall function)
               (setf done t))))
      (end-user-span tracing queue span (if done nil failure)))))

(defun call-with-span (function name &key (kind :internal) attributes links
                                       (parent (current-context)) tracing)
  "See WITH-SPAN."
  (declare (type function function))
  (let ((tracing (or tracing (current-tracing) **tracing**)))
    (unless (typep parent '(or null trace-context))
      (misuse "The parent of a span is what CURRENT-TRACE returns, not ~S." parent))
    (if (null tracing)
        (funcall function)
        (let ((record (begin-record tracing (tracing-shared tracing) parent nil)))
          (if (sampled-p record)
              (call-with-recorded-span record name kind attributes links function)
              (let ((*scope* (make-scope method:*call* (record-context record) tracing nil)))
                (funcall function)))))))

(defmacro with-span ((name &rest options) &body body)
  "Evaluate BODY as a span NAME, a string. Meanwhile the new span is the current span, the parent of
the calls and spans that begin there. OPTIONS are:

:KIND        :internal (the default), :server, :client, :producer or :consumer
:ATTRIBUTES  names and values, by turns
:LINKS       contexts of other spans
:PARENT      a context or nil, instead of the current one, for work on another thread
:TRACING     the tracing, made by MAKE-TRACING; by default the parent's, or else the one made last

An error that leaves BODY is the span's status. The span is recorded if the sampler decides so;
without tracing only BODY is evaluated. From any thread."
  (let ((function (gensym "BODY")))
    `(flet ((,function () ,@body))
       (declare (dynamic-extent #',function))
       (call-with-span #',function ,name ,@options))))

(defun set-span-attribute (name value)
  "Give the current span the attribute NAME, a string, with VALUE: a string, a number, T, NIL or a
vector of these. Nothing happens if the current span is not recorded. Return VALUE. Signal MISUSE
for another value. From any thread."
  (let ((span (current-span)))
    (when span (put-attribute span name value))
    value))

(defun add-span-event (name &rest attributes)
  "Add an event NAME, a string, to the current span, with ATTRIBUTES, names and values by turns.
Nothing happens if the current span is not recorded. Signal MISUSE for wrong attributes. From any
thread."
  (let ((span (current-span)))
    (when span
      (add-event span (short-text name (span-limits span))
                 (attribute-alist attributes (span-limits span))))
    nil))

;;; Baggage

(defun current-baggage ()
  "Return the baggage of this thread (W3C Baggage): an alist of names and values, strings, from the
innermost WITH-BAGGAGE, or from the call whose handler runs. Calls that begin here carry the baggage
if the :propagators of their tracing have :baggage. From any thread."
  (let ((context (current-context)))
    (and context (baggage-alist (context-baggage context)))))

(defun call-with-baggage (entries function)
  "As WITH-BAGGAGE; ENTRIES are names and values by turns."
  (declare (type function function))
  (let* ((context (current-context))
         (text (if context (context-baggage context) "")))
    (loop for (name value) on entries by #'cddr
          do (check-baggage-entry name value)
             (setf text (baggage-with text name value)))
    (let ((*scope* (make-scope method:*call* (with-other-baggage context text)
                               (current-tracing) (current-span))))
      (funcall function))))

(defmacro with-baggage ((&rest entries) &body body)
  "Evaluate BODY with a baggage (W3C Baggage) of ENTRIES, alternately names and values, followed by
the current baggage: each name a string that is a token, each value a string, or nil to remove it.
The calls and spans that begin there carry it, whether they are recorded or not. If the :propagators
of their tracing have :baggage, channels send it and servers read it: see CURRENT-BAGGAGE. Every
service that a call reaches can read it; at most 64 members and 8,192 octets are passed on, 4,096
octets if they come in several headers. Signal MISUSE for other entries. From any thread."
  (let ((function (gensym "BODY")))
    `(flet ((,function () ,@body))
       (declare (dynamic-extent #',function))
       (call-with-baggage (list ,@entries) #',function))))

;;; Ids for logs and exemplars

(defun call-ids (call)
  "A plist of the trace id and the span id of CALL; nil if CALL is not traced."
  (let ((record (call-record call)))
    (when (record-p record)
      (let ((context (record-context record)))
        (list :trace-id (trace-id context) :span-id (span-id context))))))

(defun current-ids (plist)
  "A plist of the trace id and the span id of this thread's current span; nil without one, or if
PLIST has such ids."
  (let ((context (and (not (getf plist :trace-id)) (current-trace))))
    (and context (list :trace-id (trace-id context) :span-id (span-id context)))))

(defun trace-exemplar (call)
  "Return an alist from \"trace_id\" and \"span_id\" to the ids of CALL's trace and span, strings;
nil if the trace is not recorded. Use this function for :exemplar of MAKE-METRICS. From any thread."
  (let ((record (known-record call)))
    (when (and (record-p record) (record-span record))
      (let ((context (record-context record)))
        (list (cons "trace_id" (trace-id context)) (cons "span_id" (span-id context)))))))

(setf (get 'trace-exemplar :trusted) t) ; it signals no errors: see EXEMPLAR-FUNCTION of metrics
