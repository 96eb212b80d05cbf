;;;; Reading the data of loops for channelz: a function is called on the loop, in place if this
;;;; thread may take the loop, and its answer is awaited for a limited time. All values that the
;;;; function reads are of the same moment. A question must not delay the calls of a loop for longer
;;;; than a call does.

(in-package #:clgrpc.channelz)

(defconstant +answer-seconds+ 2
  "How long a caller waits for a loop: a working loop answers within a millisecond.")

(defun ask (loop function)
  "The value of FUNCTION, called on LOOP; nil if LOOP has stopped. Fail with :unavailable if LOOP
does not answer."
  (flet ((complain (reason)
           (when (eq :late reason)
             (status:fail :unavailable (format nil "~A has not answered within ~D s"
                                               (loop:event-loop-name loop) +answer-seconds+)))))
    (loop:call-and-wait loop function +answer-seconds+ #'complain)))

(defun first-found (function owners)
  "The first value of FUNCTION, called with each of OWNERS, that is not nil. An owner whose loop
does not answer is skipped; if no value is found, that owner's error is signalled."
  (declare (type function function))
  (let ((silent nil))
    (dolist (owner owners (when silent (error silent)))
      (let ((found (handler-case (funcall function owner)
                     (status:unavailable (error) (setf silent error) nil))))
        (when found (return found))))))

(defun cores ()
  "The cores of the channels of this process, in the order of their numbers."
  (sort (registered client:**cores**) #'<
        :key (lambda (core) (channel-trace-number (client:core-channel-trace core)))))

(defun servers ()
  "The servers of this process, in the order of their numbers."
  (sort (registered server:**servers**) #'<
        :key (lambda (server) (channel-trace-number (server:server-channel-trace server)))))

(defun find-numbered (number channel-traces key)
  "The owner in CHANNEL-TRACES whose channel trace, by KEY, has NUMBER; nil if no owner has it."
  (find number channel-traces :key (lambda (owner) (channel-trace-number (funcall key owner)))))

(defun links (core)
  "The links that the subchannels of CORE use; if channels share a connection set, all links of the
set. On its loop."
  (loop for subchannel in (client:core-subchannels core)
        append (client:all-links (client:subchannel-connection-set subchannel))))

(defun page (items start most key)
  "Two values: the first MOST of ITEMS whose number is START or more, in the order of the numbers
that KEY returns; and true if no items come after these."
  (let ((rest (sort (remove-if (lambda (item) (< (funcall key item) start)) items) #'< :key key)))
    (values (subseq rest 0 (min most (length rest)))
            (<= (length rest) most))))
