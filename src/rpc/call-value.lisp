;;;; Values on a call: data that interceptors have determined, such as the caller's identity, for
;;;; handlers, callbacks and other interceptors, so that these need no special variables. The values
;;;; are an alist in the call's PARTS, empty for a call without values.
;;;;
;;;; The list only grows, and a value is changed by one store, so threads need no lock: a thread
;;;; that reads while another writes sees the old value or the new one.

(in-package #:clgrpc.rpc)

(declaim (inline check-key))
(defun check-key (key)
  "Return KEY if it is valid for a value on a call; else signal MISUSE."
  (unless (and key (symbolp key)) (misuse "The key of a value on a call is a symbol, not ~S." key))
  key)

(declaim (sb-ext:maybe-inline call-value))
(defun call-value (call key &optional default)
  "Return two values: the value that CALL has for KEY, a symbol, and true; or DEFAULT and nil.
SETF stores a value. Signal MISUSE if KEY is not a symbol. The two ends of a call have separate
values. The argument :values of a stub gives the first values of a client's call. From any thread."
  (check-key key)
  (let* ((parts (call-parts call))
         (entry (and parts (parts-values parts) (assoc key (parts-values parts) :test #'eq))))
    (if entry
        (values (cdr entry) t)
        (values default nil))))

(defun (setf call-value) (value call key &optional default)
  (declare (ignore default))
  (loop with parts = (ensure-parts call)
        for old = (parts-values parts)
        for entry = (assoc (check-key key) old :test #'eq)
        do (cond (entry (return (setf (cdr entry) value)))
                 ((eq old (sb-ext:compare-and-swap (parts-values parts) old
                                                   (acons key value old)))
                  (return value)))))

(defun late-value (call key)
  "Return the value that CALL has for KEY. If CALL has no value for KEY, call the function :late of
CALL's observer with CALL, and store the result as the value. Return nil if the observer has no
function :late. From any thread."
  (multiple-value-bind (value there) (call-value call key)
    (let* ((observer (if there nil (operate observer call)))
           (late (and observer (observer-late observer))))
      (if (null late)
          value
          (loop with new = (cons key (funcall (the function late) call))
                with parts = (ensure-parts call)
                for old = (parts-values parts)
                for entry = (assoc key old :test #'eq)
                when entry return (cdr entry)
                when (eq old (sb-ext:compare-and-swap (parts-values parts) old (cons new old)))
                  return (cdr new))))))
