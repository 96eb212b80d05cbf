;;;; Peers: who has connected to a server, and how often. The CENSUS counts connections by peer: all
;;;; of them, and those that are not ready. When there are as many as there may be, a new connection
;;;; has another one closed, of the peer that has most. So no peer keeps the others out, and a peer
;;;; need not be known before. The census is asked three times in the life of a connection, under
;;;; one lock, for a time that does not depend on how many connections there are.
;;;;
;;;; A connection has a SEAT from before it is begun until it has ended. A peer has two lists of the
;;;; seats whose connections have begun, those that are not ready and those that are, the oldest
;;;; first. A seat that is to go is dismissed: it counts no more among its peer's, but among the
;;;; LEAVING, until its connection has ended on its own loop. Only so many may be leaving at a time.

(in-package #:clgrpc.server)

(defstruct (peer-entry (:include ring) (:constructor make-peer-entry (name share account))
                       (:copier nil))
  "A peer, and what it has. The entry of a peer without connections is in the census's ring GONE."
  (name "" :type string :read-only t)   ; as PEER-NAME has it
  (share nil :type loop:share :read-only t) ; of the reserve; those of its links are parts
  (account nil :type account :read-only t) ; of what its connections hold
  (connections nil :type (or null owner-usage)) ; how many it has, among all peers
  (handshakes nil :type (or null owner-usage)) ; how many of these are not ready
  (unready (make-ring) :type ring :read-only t) ; the seats of those, the oldest first
  (ready (make-ring) :type ring :read-only t) ; the seats of the others
  (guests '() :type list))              ; an alist from hub to GUEST

(defmethod print-object ((entry peer-entry) stream)
  (print-unreadable-object (entry stream :type t)
    (format stream "~A ~D connections" (peer-entry-name entry)
            (owner-usage-count (peer-entry-connections entry)))))

(defstruct (guest (:copier nil))
  "A peer as one hub sees it. Only the hub's loop touches it."
  (open 0 :type fixnum))                ; how many of its calls are under way

(defstruct (seat (:include ring) (:constructor %make-seat (entry)) (:copier nil))
  "The place of a connection among those of its peer."
  (entry nil :type peer-entry :read-only t) ; the peer's
  (link nil :type (or null server-link))      ; the connection, once it is begun
  (ready nil :type boolean)             ; it has shown that it speaks what we do, or has ended
  (leaving nil :type boolean)           ; it is to go, and counts among the census's LEAVING
  (octets-left 0 :type fixnum)          ; and so much among its LEAVING-OCTETS
  (drain nil :type (or null timer))     ; the loop's: see DRAIN-LINK
  (drain-end-ns 0 :type nanoseconds)    ; the loop's: until when it waits for the PING's answer
  (drain-busy-ns 0 :type nanoseconds))  ; the loop's: when there last was a reason to wait for it

(declaim (sb-ext:freeze-type peer-entry guest seat))

(defstruct (census (:constructor %make-census) (:copier nil))
  "The peers of a server, what they have in all, and the limits, which are derived from the server's
options."
  (lock (sb-thread:make-mutex :name "clgrpc peers") :read-only t) ; for all the others
  (peers (make-hash-table :test 'equal) :type hash-table :read-only t) ; name to entry
  (connections (make-ranking) :type ranking :read-only t) ; of all peers
  (handshakes (make-ranking) :type ranking :read-only t) ; of them, those that are not ready
  (leaving 0 :type index)               ; connections that are to go and have not ended
  (leaving-octets 0 :type fixnum)       ; what those held that give way to what all hold
  (max-connections 0 :type index)       ; less than DERIVED while descriptors are short
  (max-per-peer 0 :type index)          ; connections of one peer
  (max-handshakes 0 :type index)        ; connections that are not ready
  (gone (make-ring) :type ring :read-only t) ; entries without connections, if handlers run still
  (derived 0 :type index)               ; what MAX-CONNECTIONS was at first
  (lowered-ns 0 :type nanoseconds))     ; when it last became less

(declaim (sb-ext:freeze-type census))

(defmethod print-object ((census census) stream)
  (print-unreadable-object (census stream :type t)
    (format stream "~D peers, ~A" (hash-table-count (census-peers census))
            (census-connections census))))

(defun make-census (options connections)
  "A census for a server with OPTIONS that may have CONNECTIONS."
  (let ((fewer (< connections (options-max-connections options)))
        (most (options-max-connections-per-peer options)))
    (%make-census :max-connections connections :derived connections
                  :max-per-peer (if fewer (min most (ceiling connections 2)) most)
                  :max-handshakes (options-max-handshakes options))))

(defun max-leaving (connections)
  "How many connections may be leaving where there may be so many CONNECTIONS."
  (+ 16 (ash connections -4)))

;;; Who

(defun peer-name (byte-channel)
  "The name of the peer of BYTE-CHANNEL, an accepted one that is not encrypted yet: the network of
its address (see OS:ADDRESS-NETWORK) or, on a unix socket, its user."
  (let* ((text (loop:byte-channel-peer byte-channel))
         (colon (position #\: text :from-end t)))
    (cond ((eql 0 (search "unix" text))
           (let ((user (os:peer-user (loop:byte-channel-descriptor byte-channel))))
             (if user (format nil "user ~D of ~A" user text) text)))
          ((and colon (plusp colon) (char= #\[ (char text 0)))
           (let ((address (os:make-address (subseq text 1 (1- colon)) 0)))
             (if address (os:address-network address) text)))
          (t (subseq text 0 colon)))))

(defun peer-share (server)
  "A share of SERVER's reserve for a peer. One peer alone may use 7/8 of the threads that are not
kept for other peers: its address may be a load balancer's and stand for many."
  (loop:make-share :whole (loop:reserve-root (server-reserve server))
                   :weight 7
                   :kept (ash (options-reserve-threads (server-options server)) -4)))

(defun ensure-entry (server census name)
  "The entry of the peer called NAME. The lock is held."
  (or (gethash name (census-peers census))
      (let ((entry (isolate-ring (make-peer-entry name (peer-share server)
                                                  (make-account (server-account server))))))
        (setf (peer-entry-connections entry) (make-owner-usage entry)
              (peer-entry-handshakes entry) (make-owner-usage entry)
              (gethash name (census-peers census)) entry))))

(defun ensure-guest (hub seat)
  "The guest of HUB that SEAT's peer is."
  (let* ((census (server-census (hub-server hub)))
         (entry (seat-entry seat)))
    (sb-thread:with-mutex ((census-lock census))
      (cdr (or (assoc hub (peer-entry-guests entry))
               (first (push (cons hub (make-guest)) (peer-entry-guests entry))))))))

(defun link-peer-name (link)
  "What the peer of LINK is called."
  (peer-entry-name (seat-entry (server-link-seat link))))

;;; Counting; the lock is held

(defun count-seat (census entry)
  "A new seat for the peer with ENTRY."
  (change-owner-usage (census-connections census) (peer-entry-connections entry) 1)
  (change-owner-usage (census-handshakes census) (peer-entry-handshakes entry) 1)
  (isolate-ring (%make-seat entry)))

(defun note-seat-ready (census seat)
  "The connection of SEAT is ready, or ends and so counts as ready."
  (unless (shiftf (seat-ready seat) t)
    (change-owner-usage (census-handshakes census) (peer-entry-handshakes (seat-entry seat)) -1)))

(defun uncount-seat (census seat)
  "The connection of SEAT ends."
  (let ((entry (seat-entry seat)))
    (quit-ring seat)
    (note-seat-ready census seat)
    (when (zerop (change-owner-usage (census-connections census) (peer-entry-connections entry) -1))
      (quit-ring entry)
      (enter-ring entry (census-gone census)))
    (forget-entries census)))

(defun forget-entries (census)
  "Look at the two entries that have been in GONE for longest. An entry is dropped if its peer has
no connection and no handler. If handlers of it run still, it goes to the end of the ring: should
its peer come back, they count. If the peer is back already, the entry only leaves the ring."
  (loop repeat 2
        for entry = (ring-first (census-gone census))
        while entry
        do (quit-ring entry)
           (cond ((plusp (owner-usage-count (peer-entry-connections entry))))
                 ((zerop (loop:share-running (peer-entry-share entry)))
                  (remhash (peer-entry-name entry) (census-peers census)))
                 (t (enter-ring entry (census-gone census))))))

;;; Who gives way; the lock is held

(defconstant +seats-per-look+ 32
  "To find a connection without calls, so many connections of a peer are looked at.")

(defun ready-seat-to-leave (entry)
  "The seat that the peer with ENTRY gives up of those that are ready. Look at those that were
looked at longest ago for one without calls; if there is none, it is the newest."
  (let ((ready (peer-entry-ready entry)))
    (loop repeat +seats-per-look+
          for seat = (ring-first ready)
          while seat
          do (when (zerop (wire:link-calls (seat-link seat))) (return seat))
             (quit-ring seat)
             (enter-ring seat ready)
          finally (return (ring-last ready)))))

(defun seat-to-leave (entry)
  "The seat of the peer with ENTRY to give up first, or nil if none of its connections has begun."
  (or (ring-first (peer-entry-unready entry))
      (ready-seat-to-leave entry)))

(defun dismiss (census seat &optional (most (max-leaving (census-max-connections census))))
  "The connection of SEAT is to go: return SEAT; or nil if SEAT is nil, or MOST are leaving."
  (when (and seat (< (census-leaving census) most))
    (uncount-seat census seat)
    (incf (census-leaving census))
    (setf (seat-leaving seat) t)
    seat))

(defun dismiss-for (census newcomer largest-user choose)
  "The seat that the peer with the standing LARGEST-USER gives up for one more of NEWCOMER's, or
nil. CHOOSE, a function of that peer's entry, returns the seat. Half of the seats that may be
leaving at a time are kept for newcomers that have less than half of what the largest user has. So a
peer that connects again and again, and has its own seats given up for it, never keeps others out."
  (let ((most (max-leaving (census-max-connections census))))
    (dismiss census (funcall choose (owner-usage-owner largest-user))
             (if (< (* 2 (owner-usage-count newcomer)) (owner-usage-count largest-user))
                 most
                 (ash most -1)))))

(defun room-for-handshake (census entry)
  "Make room for one more connection of the peer with ENTRY that is not ready. Return true if there
is room, and the seat that was dismissed for it, or nil."
  (let ((handshakes (census-handshakes census)))
    (if (< (ranking-total handshakes) (census-max-handshakes census))
        t
        (let ((seat (dismiss-for census (peer-entry-handshakes entry) (largest-user handshakes)
                                 (lambda (greedy) (ring-first (peer-entry-unready greedy))))))
          (values (and seat t) seat)))))

(defun room-for-connection (census entry)
  "Make room for one more connection of the peer with ENTRY. Values as ROOM-FOR-HANDSHAKE."
  (let ((connections (census-connections census)))
    (if (< (ranking-total connections) (census-max-connections census))
        t
        (let* ((largest-user (largest-user connections))
               (newcomer (peer-entry-connections entry))
               (seat (and (< (1+ (owner-usage-count newcomer)) (owner-usage-count largest-user))
                          (dismiss-for census newcomer largest-user #'seat-to-leave))))
          (values (and seat t) seat)))))

(defun try-to-seat (census entry)
  "Return a seat for a new connection of the peer with ENTRY, or the option that forbids one. The
second value lists the seats that were dismissed for it, each as (SEAT . OPTION)."
  (let ((dismissed '()))
    (flet ((room-p (option function &rest arguments)
             (multiple-value-bind (room seat) (apply function census arguments)
               (when seat (push (cons seat option) dismissed))
               room)))
      (values (cond ((<= (census-max-per-peer census)
                         (owner-usage-count (peer-entry-connections entry)))
                     :max-connections-per-peer)
                    ((not (room-p :max-handshakes #'room-for-handshake entry)) :max-handshakes)
                    ((not (room-p :max-connections #'room-for-connection entry))
                     :max-connections)
                    (t (count-seat census entry)))
              dismissed))))

;;; The life of a connection among the others

(defun expel (hub seat option)
  "End the connection of SEAT, which has been dismissed because of OPTION. On HUB's loop."
  (let ((link (seat-link seat)))
    (complain hub option (peer-entry-name (seat-entry seat)))
    (loop:post (link-loop link)
               (lambda ()
                 (wire:expel-link link (format nil "others need the place (~(~A~))" option))))))

(defun admit (hub byte-channel)
  "Count the new connection BYTE-CHANNEL, and return its seat; or return nil if the limits forbid
it. On HUB's loop."
  (let* ((server (hub-server hub))
         (census (server-census server))
         (name (peer-name byte-channel)))
    (multiple-value-bind (seat dismissed)
        (sb-thread:with-mutex ((census-lock census))
          (try-again census (loop:read-clock (hub-loop hub)))
          (try-to-seat census (ensure-entry server census name)))
      (loop for (seat . option) in dismissed do (expel hub seat option))
      (cond ((seat-p seat) seat)
            (t (complain hub seat name)
               nil)))))

(defun note-seat-taken (hub seat link)
  "LINK has been begun for SEAT. On HUB's loop."
  (let ((census (server-census (hub-server hub))))
    (setf (server-link-seat link) seat
          (server-link-guest link) (ensure-guest hub seat))
    (sb-thread:with-mutex ((census-lock census))
      (setf (seat-link seat) link)
      (enter-ring seat (peer-entry-unready (seat-entry seat))))))

(defun give-seat-up (hub seat)
  "The connection of SEAT has ended, or could not be begun."
  (let ((census (server-census (hub-server hub))))
    (sb-thread:with-mutex ((census-lock census))
      (decf (census-leaving-octets census) (shiftf (seat-octets-left seat) 0))
      (if (shiftf (seat-leaving seat) nil)
          (decf (census-leaving census))
          (uncount-seat census seat)))))

(defun note-ready (link)
  "The peer of LINK has shown that it speaks what LINK does. On its loop."
  (let ((seat (server-link-seat link)))
    (unless (seat-ready seat)
      (let ((census (server-census (hub-server (link-owner link)))))
        (sb-thread:with-mutex ((census-lock census))
          (unless (seat-leaving seat)
            (note-seat-ready census seat)
            (quit-ring seat)
            (enter-ring seat (peer-entry-ready (seat-entry seat)))))))))

(defun link-ready (http2)
  "The sink's on-settings: with the first ones the connection is ready."
  (let ((link (http2:connection-user http2)))
    (trace-event :handshaker :settings-received :role :server :peer (wire:link-peer link))
    (note-ready link)))

;;; Descriptors

(defconstant +steps-at-once+ 16
  "The limit of connections is lowered by so many when the process runs out of descriptors, and
raised by so many when it has enough again.")
(defconstant +calm-ns+ (* 10 +ns-per-second+)
  "How long after the limit of connections was lowered it may be raised.")

(defun allowed-connections (options)
  "How many connections a server with OPTIONS may have. Raise the process's limit of descriptors if
OPTIONS say so; log a warning if there may be fewer connections than OPTIONS say."
  (let* ((wanted (options-max-connections options))
         (open (max 0 (os:open-descriptor-count)))
         (spare (options-spare-descriptors options))
         (before (os:descriptor-limit))
         (limit (if (options-raise-descriptor-limit options)
                    (os:raise-descriptor-limit (+ open wanted spare (max-leaving wanted)))
                    before))
         (spare (min spare (ash limit -2)))
         (allowed (max 1 (min wanted (- limit open spare)))))
    (cond ((< allowed wanted)
           (log-event (if (< (* 2 allowed) wanted) :warning :info)
                      :max-connections-lowered :limit limit :open open :spare spare
                      :max-connections allowed
                      :max-connections-per-peer (min (options-max-connections-per-peer options)
                                                     (ceiling allowed 2))))
          ((< before limit)
           (log-event :info :descriptor-limit-raised :limit limit :before before)))
    allowed))

(defun try-again (census now)
  "If the limit of connections was lowered long enough before NOW, see whether it may be raised. The
lock is held."
  (when (and (< (census-max-connections census) (census-derived census))
             (< (+ (census-lowered-ns census) +calm-ns+) now))
    (setf (census-lowered-ns census) now
          (census-max-connections census) (min (census-derived census)
                                               (+ (census-max-connections census)
                                                  +steps-at-once+)))))

(defun note-no-descriptors (hub)
  "The process has run out of descriptors: the rest of the program uses more than was left to it. So
lower the limit of connections of HUB's server, and dismiss some of the peer that has most. Return
true if some were dismissed. On HUB's loop."
  (let* ((census (server-census (hub-server hub)))
         (dismissed '()))
    (sb-thread:with-mutex ((census-lock census))
      (let ((connections (census-connections census)))
        (setf (census-max-connections census) (max 1 (- (ranking-total connections)
                                                        +steps-at-once+))
              (census-lowered-ns census) (loop:read-clock (hub-loop hub)))
        (loop while (and (< (census-max-connections census) (ranking-total connections))
                         (< 1 (owner-usage-count (largest-user connections))))
              do (push (or (dismiss census
                                    (seat-to-leave (owner-usage-owner (largest-user connections))))
                           (return))
                       dismissed))))
    (dolist (seat dismissed) (expel hub seat :max-connections))
    (and dismissed t)))
