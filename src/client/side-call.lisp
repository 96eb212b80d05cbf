;;;; Side calls: streams of responses that the channel itself asks one server for, on a link of the
;;;; subchannel that is given: health (gRFC A17), load reports (gRFC A51). No picker has a say in
;;;; them, they are not made again, no method's config is theirs, and they do not count as calls of
;;;; the channel's users: observers are not told of them. When its link is left a side call ends, so
;;;; that it holds up nobody's end.

(in-package #:clgrpc.client)

(defun open-side-call (subchannel method request &key on-message on-end)
  "Call METHOD, one that streams responses, with REQUEST on a link of SUBCHANNEL, which is ready.
ON-MESSAGE is called with each message, ON-END with the status, both on the loop. Return the call,
or nil if no link has a stream now."
  (declare (type function on-message on-end))
  (let ((core (subchannel-core subchannel)))
    (multiple-value-bind (stream link) (free-stream subchannel)
      (when stream
        (let ((call (make-client-call :rpc-method method :endpoint core
                                      :operations **stream-operations**
                                      :born-ns (core-now core)))
              (loop (core-loop core)))
          (setf (wire:wire-parts-aside (wire:ensure-wire-parts call)) t)
          (push call (subchannel-side-calls subchannel))
          (flet ((end ()
                   (setf (subchannel-side-calls subchannel)
                         (delete call (subchannel-side-calls subchannel)))
                   (funcall on-end (call-status call))))
            ;; callbacks run with the baton lent
            (rpc:on-message call (lambda (message)
                                   (loop:post loop (lambda () (funcall on-message message)))))
            (rpc:on-end call (lambda () (loop:post loop #'end))))
          (wire:close-sending call)
          (rpc:observe call-begun (client-observer call) call)
          (start-on-stream call link stream request)
          call)))))

(defun close-side-call (call)
  "End CALL, a side call; nothing more comes of it but its end."
  (unless (call-status call)
    (client-abort call :cancelled "it is not needed any more" :local)))
