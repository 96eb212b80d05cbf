;;;; Datagrams (UDP) to one peer and back. The socket is connected, so that the kernel drops
;;;; datagrams from other addresses and reports an error if no process listens there; the kernel
;;;; chooses its port at random. Nothing is queued: a datagram that cannot be sent now is lost, as
;;;; any datagram may be.

(in-package #:clgrpc.loop)

(defconstant +datagram-octets+ 4096
  "The maximum length in octets of a received datagram. The rest of a longer datagram is lost.")
(defconstant +most-datagrams+ 64
  "The maximum number of datagrams that a UDP socket accepts from its peer. It expects only a few,
and fails if more arrive.")

(defstruct (udp-socket (:include source) (:constructor %make-udp-socket) (:copier nil))
  "Datagrams to a peer and back; see OPEN-UDP-SOCKET."
  (socket -1 :type fixnum)              ; the descriptor; -1 once closed
  (peer "" :type string)                ; the peer's address, as text
  (on-datagram nil :type function)      ; a function of (octets end)
  (on-failure nil :type function)       ; a function of (text)
  (taken 0 :type (integer 0 #.+most-datagrams+)) ; how many datagrams have come
  ;; the octets of the last datagram
  (input (make-octets +datagram-octets+) :type octets :read-only t))

(declaim (sb-ext:freeze-type udp-socket))

(defmethod print-object ((udp-socket udp-socket) stream)
  (print-unreadable-object (udp-socket stream :type t)
    (write-string (udp-socket-peer udp-socket) stream)))

(defun udp-socket-network (udp-socket)
  (event-loop-network (udp-socket-loop udp-socket)))

(defun open-udp-socket (loop address on-datagram on-failure)
  "Return a UDP socket for datagrams to and from ADDRESS, an address in the kernel's form, or nil
and the reason of the failure, as text. (ON-DATAGRAM octets end) is called with each datagram from
ADDRESS: the octets before END of the vector OCTETS, valid until ON-DATAGRAM returns. (ON-FAILURE
text) is called if the UDP socket fails, for instance because no process listens at ADDRESS, or if
LOOP stops; then the UDP socket is closed. Both functions are called on LOOP; call this function on
LOOP too."
  (let* ((network (event-loop-network loop))
         (socket (funcall (network-open-datagram network) (os:address-family address)))
         (udp-socket (%make-udp-socket :loop loop :socket socket :peer (os:address-text address)
                                       :on-datagram on-datagram :on-failure on-failure
                                       :on-event #'udp-socket-event
                                       :on-release #'release-udp-socket)))
    (flet ((must (result)
             (when (os:failed-p result)
               (close-udp-socket udp-socket)
               (return-from open-udp-socket (values nil (os:errno-text result))))))
      (must socket)
      (must (funcall (network-connect network) socket address))
      (must (add-source udp-socket socket)))
    udp-socket))

(defun send-datagram (udp-socket octets)
  "Send OCTETS to the peer of UDP-SOCKET. On its loop."
  (unless (minusp (udp-socket-socket udp-socket))
    (let ((result (funcall (network-send (udp-socket-network udp-socket))
                           (udp-socket-socket udp-socket)
                           octets 0 (length octets))))
      (when (and (os:failed-p result) (/= result (- os:+eagain+)))
        ;; report it later: the sender may not expect a call of its function before this returns
        (post (udp-socket-loop udp-socket)
              (lambda () (fail-udp-socket udp-socket (os:errno-text result)))))))
  nil)

(defun udp-socket-event (udp-socket flags)
  "Handle the received datagrams."
  (declare (ignore flags))
  (loop with input = (udp-socket-input udp-socket)
        until (minusp (udp-socket-socket udp-socket))
        do (let ((result (funcall (network-receive (udp-socket-network udp-socket))
                                  (udp-socket-socket udp-socket) input 0 (length input))))
             (cond ((= result (- os:+eagain+)) (return))
                   ((os:failed-p result) (fail-udp-socket udp-socket (os:errno-text result)))
                   ((= +most-datagrams+ (udp-socket-taken udp-socket))
                    (fail-udp-socket udp-socket "the peer sends too much"))
                   (t (incf (udp-socket-taken udp-socket))
                      (funcall (udp-socket-on-datagram udp-socket) input result))))))

(defun fail-udp-socket (udp-socket text)
  (unless (minusp (udp-socket-socket udp-socket))
    (close-udp-socket udp-socket)
    (funcall (udp-socket-on-failure udp-socket) text)))

(defun release-udp-socket (udp-socket)
  (fail-udp-socket udp-socket "the event loop has stopped"))

(defun close-udp-socket (udp-socket)
  "Close UDP-SOCKET; its functions are not called afterwards. On its loop."
  (remove-source udp-socket)
  (let ((socket (shiftf (udp-socket-socket udp-socket) -1)))
    (unless (minusp socket) (funcall (network-close (udp-socket-network udp-socket)) socket)))
  nil)

(defun route-p (loop address)
  "True if LOOP's network has a route to ADDRESS, as far as this can be known without sending a
packet."
  (let* ((network (event-loop-network loop))
         (socket (funcall (network-open-datagram network) (os:address-family address))))
    (unless (os:failed-p socket)
      (unwind-protect
           (not (os:failed-p (funcall (network-connect network) socket address)))
        (funcall (network-close network) socket)))))
