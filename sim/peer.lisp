;;;; Peers that send octets of the user's choice. A test or a fuzzer plays such a peer at the other
;;;; end of a connection of a real server or channel.

(in-package #:clgrpc.sim)

(defstruct (peer (:constructor make-peer (socket)) (:copier nil))
  "One end of a connection; its owner sends and receives for it."
  (socket nil :type socket :read-only t)) ; the peer's end of the connection

(declaim (sb-ext:freeze-type peer))

(define-printer (peer peer)
  "~A" (peer-socket peer))

(defun own-address (name port)
  "The address of PORT of the host called NAME."
  (values (first (or (resolve-name (current-host) name port)
                     (misuse "No host is named ~S." name)))))

(defun connect-peer (name port)
  "Connect to PORT of the host called NAME, from the current host; return a peer, without waiting
for the connection. The peer may send something at once. In a simulation, on any of its threads."
  (let ((socket (open-socket (current-host))))
    (connect-socket (current-host) (socket-descriptor socket) (own-address name port))
    (make-peer socket)))

(defun listen-as-peer (port)
  "Listen on PORT of the current host; return a listener, the argument for ACCEPT-PEER. In a
simulation, on any of its threads."
  (let ((result (listen-at (current-host) (host-address (current-host) port))))
    (when (minusp result) (misuse "Port ~D is taken." port))
    (find-socket (current-host) result)))

(defun accept-peer (listener)
  "Accept the first connection that waits on LISTENER, which LISTEN-AS-PEER returned. Return the
peer for our end of it, or NIL if no connection waits. In a simulation, on any of its threads."
  (let ((socket (pop (socket-backlog listener))))
    (and socket (make-peer socket))))

(defun say (peer octets)
  "Send OCTETS."
  (incf (socket-unread (peer-socket peer)) (length octets))
  (transmit (peer-socket peer) octets))

(defun hear (peer)
  "Return the octets that PEER has received since the last call, as a list of vectors of octets. In
a simulation, on any of its threads."
  (let* ((socket (peer-socket peer))
         (heard (shiftf (socket-incoming socket) '())))
    (dolist (octets heard heard) (note-read socket (length octets)))))

(defun left-p (peer)
  "True if PEER receives nothing more, because the other end has ended its side, or reset the
connection. In a simulation, on any of its threads."
  (let ((socket (peer-socket peer)))
    (or (socket-ended socket) (plusp (socket-failure socket)))))

(defun hang-up (peer)
  "Close PEER's end. Closing a closed end does nothing. In a simulation, on any of its threads."
  (hear peer)
  (unless (eq :closed (socket-state (peer-socket peer))) (close-socket (peer-socket peer))))

(defun forgotten-p (peer)
  "True if the other end has closed the connection to PEER, and therefore keeps no data about it. In
a simulation, on any of its threads."
  (let ((other (socket-peer (peer-socket peer))))
    (or (null other) (eq :closed (socket-state other)))))

;;; Datagrams

(defun serve-datagrams (port function)
  "Serve PORT of the current host, until the host ends or starts again: call FUNCTION with the
octets of each datagram. FUNCTION returns a list of the octets of the answers, and must not wait. In
a simulation, on any of its threads."
  (setf (gethash port (host-services (current-host))) function)
  nil)
