;;;; Datagrams (UDP) to one peer and back. The socket is connected, so that the kernel drops what
;;;; comes from anybody else and says when nobody listens there; its port is one that the kernel
;;;; chooses at random. Nothing is kept: a datagram that cannot be sent now is lost, as any may be.

(in-package #:clgrpc.loop)

(defconstant +datagram-octets+ 4096
  "The longest datagram that is taken; the rest of a longer one is lost.")
(defconstant +most-datagrams+ 64
  "So many are taken of a peer; one more ends the exchange, which was to have a few.")

(defstruct (exchange (:include source) (:constructor %make-exchange) (:copier nil))
  "Datagrams to a peer and back; see OPEN-EXCHANGE."
  (socket -1 :type fixnum)              ; the descriptor; -1 once closed
  (peer "" :type string)                ; its address, as text
  (on-datagram nil :type function)      ; (octets end)
  (on-failure nil :type function)       ; (text)
  (taken 0 :type (integer 0 #.+most-datagrams+)) ; how many datagrams have come
  (input (make-octets +datagram-octets+) :type octets :read-only t)) ; the last of them

(declaim (sb-ext:freeze-type exchange))

(defmethod print-object ((exchange exchange) stream)
  (print-unreadable-object (exchange stream :type t)
    (write-string (exchange-peer exchange) stream)))

(defun exchange-network (exchange)
  (event-loop-network (exchange-loop exchange)))

(defun open-exchange (loop address on-datagram on-failure)
  "Return an exchange of datagrams with ADDRESS, the kernel's, or nil and why there can be none, as
text. (ON-DATAGRAM octets end) is called with each datagram that comes from there, whose octets
are those of the vector up to END until it returns; (ON-FAILURE text) if nobody listens there or
LOOP stops, whereupon the exchange is closed. On LOOP, as both."
  (let* ((network (event-loop-network loop))
         (socket (funcall (network-open-datagram network) (os:address-family address)))
         (exchange (%make-exchange :loop loop :socket socket :peer (os:address-text address)
                                   :on-datagram on-datagram :on-failure on-failure
                                   :on-event #'exchange-event
                                   :on-release (lambda (exchange)
                                                 (fail-exchange exchange
                                                                "the event loop has stopped")))))
    (flet ((must (result)
             (when (os:failed-p result)
               (close-exchange exchange)
               (return-from open-exchange (values nil (os:errno-text result))))))
      (must socket)
      (must (funcall (network-connect network) socket address))
      (must (add-source exchange socket)))
    exchange))

(defun send-datagram (exchange octets)
  "Send OCTETS to the peer of EXCHANGE. On its loop."
  (unless (minusp (exchange-socket exchange))
    (let ((result (funcall (network-send (exchange-network exchange)) (exchange-socket exchange)
                           octets 0 (length octets))))
      (when (and (os:failed-p result) (/= result (- os:+eagain+)))
        ;; not now: the sender may not expect to be told before this returns
        (post (exchange-loop exchange)
              (lambda () (fail-exchange exchange (os:errno-text result)))))))
  nil)

(defun exchange-event (exchange flags)
  "Take the datagrams that have come."
  (declare (ignore flags))
  (loop with input = (exchange-input exchange)
        until (minusp (exchange-socket exchange))
        do (let ((result (funcall (network-receive (exchange-network exchange))
                                  (exchange-socket exchange) input 0 (length input))))
             (cond ((= result (- os:+eagain+)) (return))
                   ((os:failed-p result) (fail-exchange exchange (os:errno-text result)))
                   ((= +most-datagrams+ (exchange-taken exchange))
                    (fail-exchange exchange "it sends too much"))
                   (t (incf (exchange-taken exchange))
                      (funcall (exchange-on-datagram exchange) input result))))))

(defun fail-exchange (exchange text)
  (unless (minusp (exchange-socket exchange))
    (close-exchange exchange)
    (funcall (exchange-on-failure exchange) text)))

(defun close-exchange (exchange)
  "End EXCHANGE: nobody is told of anything any more. On its loop."
  (remove-source exchange)
  (let ((socket (shiftf (exchange-socket exchange) -1)))
    (unless (minusp socket) (funcall (network-close (exchange-network exchange)) socket)))
  nil)

(defun route-p (loop address)
  "True if LOOP's network has a way to ADDRESS, as far as it knows without sending anything."
  (let* ((network (event-loop-network loop))
         (socket (funcall (network-open-datagram network) (os:address-family address))))
    (unless (os:failed-p socket)
      (unwind-protect
           (not (os:failed-p (funcall (network-connect network) socket address)))
        (funcall (network-close network) socket)))))
