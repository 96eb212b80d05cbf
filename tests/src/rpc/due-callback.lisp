;;;; The callback of a call that is due, and how often it is called.

(in-package #:clgrpc.tests.rpc)

(defun due (call)
  "The value of CALL's callback that is due, or nil."
  (let ((function (rpc:due-callback call (rpc::ensure-callbacks call) t)))
    (and function (funcall function))))

(defun room-callback (call)
  "The callback of CALL's user for room to send."
  (rpc::callbacks-on-writable (rpc::call-callbacks call)))

(test ends-are-told-once
  (let ((call (new-call :room (constantly 1) :schedule (constantly nil)))
        (callbacks nil))
    (setf callbacks (rpc::ensure-callbacks call)
          (rpc::callbacks-on-cancel callbacks) (constantly :cancelled)
          (rpc::callbacks-on-ended callbacks) (list (constantly :ended)))
    (is (null (due call)))
    (rpc:end-call call :aborted :message "no")
    (is (eq :cancelled (due call)))
    (is (eq :ended (due call)))
    (is (null (due call)))))

(test room-is-told-of-when-wanted
  (let* ((room 0)
         (call (new-call :room (lambda (call) (declare (ignore call)) room)))
         (callbacks (rpc::ensure-callbacks call)))
    (setf (rpc::callbacks-on-writable callbacks) (constantly :writable))
    (is (null (due call)) "there is no room")
    (setf room 1)
    (is (eq :writable (due call)))
    (is (null (due call)) "the callback is wanted once")
    (rpc:watch-room call)
    (is (eq :writable (due call)))
    (rpc:end-call call :ok)
    (rpc:watch-room call)
    (is (null (due call)) "after the end nothing can be written")))
