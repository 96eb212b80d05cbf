;;;; The peers of a server and the number of their connections. The ADMISSION counts the connections
;;;; of each peer: all of them, and those that are not ready. At the limit a new connection replaces
;;;; one of the peer that has the most. So no peer keeps the others out, and no peer has to be known
;;;; in advance. A connection uses the admission three times in its life, under one lock, for a time
;;;; that does not depend on the number of connections.
;;;;
;;;; A connection has a PERMIT from before it is begun until it has ended. A peer has two lists of
;;;; the permits whose connections have begun, the oldest first: those that are not ready and those
;;;; that are. The admission dismisses a permit when its connection must give way to another. A
;;;; dismissed permit no longer counts among its peer's. The permit counts among the LEAVING until
;;;; its connection has ended on its own loop; MAX-LEAVING bounds their number.

(in-package #:clgrpc.server)

(defstruct (peer-entry (:include ring)
                       (:constructor make-peer-entry
                           (name quota account &aux (budget (make-decompression-budget))
                            (budget-caller (budget-caller budget))))
                       (:copier nil))
  "A peer, with its connections and its quota. The entry of a peer without connections is in the
admission's ring GONE."
  (name "" :type string :read-only t)   ; the name that PEER-NAME returns
  ;; the peer's quota of the reserve's threads; the quotas of its links are children of this quota
  (quota nil :type loop:quota :read-only t)
  (account nil :type account :read-only t) ; the account of the octets that its connections hold
  ;; the budget of the time that its compressed messages take
  (budget nil :read-only t)
  (budget-caller nil :type function :read-only t) ; the slot BUDGET of its links
  ;; the number of its connections, in the ranking of all peers
  (connections nil :type (or null owner-usage))
  ;; the number of its connections that are not ready, in the ranking of all peers
  (handshakes nil :type (or null owner-usage))
  ;; the permits of connections that are not ready, the oldest first
  (unready (make-ring) :type ring :read-only t)
  (ready (make-ring) :type ring :read-only t) ; the permits of its other connections
  (peer-views '() :type list))          ; an alist from server loop to PEER-VIEW

(define-printer (entry peer-entry)
  "~A ~D connections" (peer-entry-name entry) (owner-usage-count (peer-entry-connections entry)))

(defstruct (peer-view (:copier nil))
  "The calls of a peer on one server loop. Only that loop uses the view."
  (open 0 :type fixnum))                ; how many calls of the peer are under way

(defstruct (drain-wait (:constructor make-drain-wait (timer)) (:copier nil) (:predicate nil))
  "The wait of a connection for the answer to the PING of DRAIN-LINK."
  (timer nil :type timer :read-only t)  ; the timer of LOOK-AT-DRAIN
  (end-ns 0 :type nanoseconds)          ; until when it waits
  (busy-ns 0 :type nanoseconds))        ; the last time of a reason to wait longer

(define-printer (wait drain-wait)
  "until ~,3F s" (ns-seconds (drain-wait-end-ns wait)))

(defstruct (permit (:include ring) (:constructor %make-permit (entry)) (:copier nil))
  "The place of a connection among all connections of its peer."
  (entry nil :type peer-entry :read-only t) ; the peer's
  (link nil :type (or null server-link))      ; the connection, once it is begun
  ;; the connection has shown that it speaks the protocol, or has ended
  (ready nil :type boolean)
  ;; the connection must end, and counts among the admission's LEAVING
  (leaving nil :type boolean)
  (octets-left 0 :type fixnum)          ; the permit's part of the admission's LEAVING-OCTETS
  (drain nil :type (or null drain-wait))) ; the loop's: see DRAIN-LINK

(declaim (sb-ext:freeze-type peer-entry peer-view drain-wait permit))

(defstruct (admission (:constructor %make-admission) (:copier nil))
  "The peers of a server, the totals of their connections, and the limits, which are derived from
the server's options."
  (lock (sb-thread:make-mutex :name "clgrpc peers") :read-only t) ; guards all other slots
  ;; maps a name to the entry of the peer
  (peers (make-hash-table :test 'equal) :type hash-table :read-only t)
  (connections (make-ranking) :type ranking :read-only t) ; connections of all peers
  ;; connections of all peers that are not ready
  (handshakes (make-ranking) :type ranking :read-only t)
  (leaving 0 :type index)               ; connections that must end and have not ended yet
  ;; octets held by connections that leave because of a limit on octets
  (leaving-octets 0 :type fixnum)
  (max-connections 0 :type index)       ; less than DERIVED while descriptors are short
  (max-per-peer 0 :type index)          ; the most connections of one peer
  (max-handshakes 0 :type index)        ; connections that are not ready
  (gone (make-ring) :type ring :read-only t) ; entries without connections whose handlers still run
  (derived 0 :type index)               ; the first value of MAX-CONNECTIONS
  (lowered-ns 0 :type nanoseconds))     ; when MAX-CONNECTIONS last became less

(declaim (sb-ext:freeze-type admission))

(define-printer (admission admission)
  "~D peers, ~A" (hash-table-count (admission-peers admission)) (admission-connections admission))

(defun make-admission (options connections)
  "An admission for a server with OPTIONS; it admits at most CONNECTIONS connections."
  (let ((fewer (< connections (options-max-connections options)))
        (most (options-max-connections-per-peer options)))
    (%make-admission :max-connections connections :derived connections
                     :max-per-peer (if fewer (min most (ceiling connections 2)) most)
                     :max-handshakes (options-max-handshakes options))))

(defun max-leaving (connections)
  "How many dismissed connections may exist at a time if the limit of connections is CONNECTIONS."
  (+ 16 (ash connections -4)))

;;; The name of a peer

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

(defun make-peer-quota (server)
  "A quota of SERVER's threads for a peer. One peer alone may use 7/8 of the threads that are not
reserved for other peers, since it may be a load balancer and represent many clients."
  (loop:make-quota :parent (loop:reserve-root (server-reserve server))
                   :weight 7
                   :kept (ash (options-reserve-threads (server-options server)) -4)))

(defun ensure-entry (server admission name)
  "The entry of the peer called NAME. The caller must hold the admission's lock."
  (or (gethash name (admission-peers admission))
      (let ((entry (isolate-ring (make-peer-entry name (make-peer-quota server)
                                                  (make-account (server-account server))))))
        (setf (peer-entry-connections entry) (make-owner-usage entry)
              (peer-entry-handshakes entry) (make-owner-usage entry)
              (gethash name (admission-peers admission)) entry))))

(defun ensure-peer-view (server-loop permit)
  (let* ((admission (server-admission (server-loop-server server-loop)))
         (entry (permit-entry permit)))
    (sb-thread:with-mutex ((admission-lock admission))
      (cdr (or (assoc server-loop (peer-entry-peer-views entry))
               (first (push (cons server-loop (make-peer-view)) (peer-entry-peer-views entry))))))))

(defun link-peer-name (link)
  (peer-entry-name (permit-entry (server-link-permit link))))

;;; Counting; the lock is held

(defun count-permit (admission entry)
  "Return a new permit for the peer with ENTRY, and count it."
  (change-owner-usage (admission-connections admission) (peer-entry-connections entry) 1)
  (change-owner-usage (admission-handshakes admission) (peer-entry-handshakes entry) 1)
  (isolate-ring (%make-permit entry)))

(defun note-permit-ready (admission permit)
  "Count the connection of PERMIT among the ready ones, because it is ready or ends."
  (unless (shiftf (permit-ready permit) t)
    (change-owner-usage (admission-handshakes admission)
                        (peer-entry-handshakes (permit-entry permit)) -1)))

(defun uncount-permit (admission permit)
  "Stop counting the connection of PERMIT, which ends."
  (let ((entry (permit-entry permit)))
    (quit-ring permit)
    (note-permit-ready admission permit)
    (change-owner-usage (admission-connections admission) (peer-entry-connections entry) -1)
    (note-gone admission entry)))

(defun note-gone (admission entry)
  "Let ENTRY be forgotten, unless its peer has connections."
  (when (zerop (owner-usage-count (peer-entry-connections entry)))
    (quit-ring entry)
    (enter-ring entry (admission-gone admission)))
  (forget-entries admission))

(defun forget-entries (admission)
  "Look at the two entries that have been in GONE for longest. An entry is dropped if its peer has
no connection and no handler, and owes no processor time for compressed messages. Otherwise the
entry is moved to the end of the ring, so that its handlers and time still count if the peer
returns. If the peer is back already, the entry only leaves the ring."
  (loop repeat 2
        for entry = (ring-first (admission-gone admission))
        while entry
        do (quit-ring entry)
           (cond ((plusp (owner-usage-count (peer-entry-connections entry))))
                 ((and (zerop (loop:quota-running (peer-entry-quota entry)))
                       (not (budget-used-p (peer-entry-budget entry))))
                  (remhash (peer-entry-name entry) (admission-peers admission)))
                 (t (enter-ring entry (admission-gone admission))))))

;;; The connections that give way; the lock is held

(defconstant +permits-per-look+ 32
  "How many connections of a peer are examined to find one without calls.")

(defun ready-permit-to-leave (entry)
  "The ready permit that the peer with ENTRY must give up: one without calls among the permits that
were examined longest ago, or else the newest permit."
  (let ((ready (peer-entry-ready entry)))
    (loop repeat +permits-per-look+
          for permit = (ring-first ready)
          while permit
          do (when (zerop (server-link-calls (permit-link permit))) (return permit))
             (quit-ring permit)
             (enter-ring permit ready)
          finally (return (ring-last ready)))))

(defun permit-to-leave (entry)
  "The permit that the peer with ENTRY must give up first, or nil if none of its connections has
begun."
  (or (ring-first (peer-entry-unready entry))
      (ready-permit-to-leave entry)))

(defun dismiss
       (admission permit &optional (most (max-leaving (admission-max-connections admission))))
  "Dismiss PERMIT and return it. Return nil if PERMIT is nil or MOST permits are leaving."
  (when (and permit (< (admission-leaving admission) most))
    (uncount-permit admission permit)
    (incf (admission-leaving admission))
    (setf (permit-leaving permit) t)
    permit))

(defun dismiss-for (admission newcomer largest-user choose)
  "Dismiss a permit of the peer with the owner usage LARGEST-USER to make room for a permit of
NEWCOMER; return the dismissed permit or nil. CHOOSE, a function of the largest user's entry,
returns the permit. Half of the permits that may be leaving at a time are reserved for newcomers
that have less than half as many as the largest user. So a peer that connects again and again, in
place of its own connections, never keeps others out."
  (let ((most (max-leaving (admission-max-connections admission))))
    (dismiss admission (funcall choose (owner-usage-owner largest-user))
             (if (< (* 2 (owner-usage-count newcomer)) (owner-usage-count largest-user))
                 most
                 (ash most -1)))))

(defun room-for-handshake (admission entry)
  "Make room for one more connection of the peer with ENTRY that is not ready. Return two values:
true if there is room; and the permit that was dismissed to make room, or nil."
  (let ((handshakes (admission-handshakes admission)))
    (if (< (ranking-total handshakes) (admission-max-handshakes admission))
        t
        (let ((permit (dismiss-for admission (peer-entry-handshakes entry) (largest-user handshakes)
                                   (lambda (greedy) (ring-first (peer-entry-unready greedy))))))
          (values (and permit t) permit)))))

(defun room-for-connection (admission entry)
  "Make room for one more connection of the peer with ENTRY. Return the same values as
ROOM-FOR-HANDSHAKE."
  (let ((connections (admission-connections admission)))
    (if (< (ranking-total connections) (admission-max-connections admission))
        t
        (let* ((largest-user (largest-user connections))
               (newcomer (peer-entry-connections entry))
               (permit (and (< (1+ (owner-usage-count newcomer)) (owner-usage-count largest-user))
                            (dismiss-for admission newcomer largest-user #'permit-to-leave))))
          (values (and permit t) permit)))))

(defun try-to-permit (admission entry)
  "Return a permit for a new connection of the peer with ENTRY, or the option that forbids it. The
second value lists the permits that were dismissed to make room, each as (PERMIT . OPTION)."
  (let ((dismissed '()))
    (flet ((room-p (option function &rest arguments)
             (multiple-value-bind (room permit) (apply function admission arguments)
               (when permit (push (cons permit option) dismissed))
               room)))
      (values (cond ((<= (admission-max-per-peer admission)
                         (owner-usage-count (peer-entry-connections entry)))
                     :max-connections-per-peer)
                    ((not (room-p :max-handshakes #'room-for-handshake entry)) :max-handshakes)
                    ((not (room-p :max-connections #'room-for-connection entry))
                     :max-connections)
                    (t (count-permit admission entry)))
              dismissed))))

;;; The life of a permit

(defun expel (server-loop permit option)
  "End the connection of PERMIT, which has been dismissed because of OPTION. On SERVER-LOOP's loop."
  (let ((link (permit-link permit)))
    (complain server-loop option (peer-entry-name (permit-entry permit)))
    (loop:post (server-link-loop link)
               (lambda ()
                 (wire:close-link link (format nil "closed in favour of another connection (~(~A~))"
                                               option)
                                  :how :expel)))))

(defun admit (server-loop byte-channel)
  "Count the new connection BYTE-CHANNEL, and return its permit; or return nil if the limits forbid
it. On SERVER-LOOP's loop."
  (let* ((server (server-loop-server server-loop))
         (admission (server-admission server))
         (name (peer-name byte-channel)))
    (multiple-value-bind (permit dismissed)
        (sb-thread:with-mutex ((admission-lock admission))
          (try-again admission (loop:read-clock (server-loop-loop server-loop)))
          (let ((entry (ensure-entry server admission name)))
            (multiple-value-prog1 (try-to-permit admission entry)
              ;; otherwise the entry of a refused peer would be kept for ever
              (note-gone admission entry))))
      (loop for (permit . option) in dismissed do (expel server-loop permit option))
      (cond ((permit-p permit) permit)
            (t (complain server-loop permit name)
               nil)))))

(defun note-permit-taken (server-loop permit link)
  "Note that LINK is the connection of PERMIT. On SERVER-LOOP's loop."
  (let ((admission (server-admission (server-loop-server server-loop))))
    (setf (server-link-permit link) permit
          (server-link-peer-view link) (ensure-peer-view server-loop permit))
    (sb-thread:with-mutex ((admission-lock admission))
      (setf (permit-link permit) link)
      (enter-ring permit (peer-entry-unready (permit-entry permit))))))

(defun give-permit-up (server-loop permit)
  "Give PERMIT up, whose connection has ended, or could not be begun."
  (let ((admission (server-admission (server-loop-server server-loop))))
    (sb-thread:with-mutex ((admission-lock admission))
      (decf (admission-leaving-octets admission) (shiftf (permit-octets-left permit) 0))
      (if (shiftf (permit-leaving permit) nil)
          (decf (admission-leaving admission))
          (uncount-permit admission permit)))))

(defun note-ready (link)
  "Note that LINK is ready: its peer has shown that it speaks the protocol of LINK. On its loop."
  (let ((permit (server-link-permit link)))
    (unless (permit-ready permit)
      (let ((admission (server-admission (server-loop-server (server-link-owner link)))))
        (sb-thread:with-mutex ((admission-lock admission))
          (unless (permit-leaving permit)
            (note-permit-ready admission permit)
            (quit-ring permit)
            (enter-ring permit (peer-entry-ready (permit-entry permit)))))))))

(defun link-ready (http2)
  "The sink's on-settings: with the first ones the connection is ready."
  (let ((link (http2:connection-user http2)))
    (trace-event :handshaker :settings-received :role :server :peer (server-link-peer link))
    (note-ready link)))

;;; Descriptors

(defconstant +steps-at-once+ 16
  "The number of connections by which the limit is lowered when the process runs out of descriptors,
and raised when it has enough again.")
(defconstant +calm-ns+ (* 10 +ns-per-second+)
  "How many nanoseconds after a reduction the limit of connections may be raised again.")

(defun allowed-connections (options)
  "Return the number of connections that a server with OPTIONS may have. Raise the process's limit
of descriptors if OPTIONS allow it; log a warning if the number is less than OPTIONS require."
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

(defun try-again (admission now)
  "If the limit of connections was lowered long enough before NOW, check whether it may be raised.
The caller must hold the admission's lock."
  (when (and (< (admission-max-connections admission) (admission-derived admission))
             (< (+ (admission-lowered-ns admission) +calm-ns+) now))
    (setf (admission-lowered-ns admission) now
          (admission-max-connections admission) (min (admission-derived admission)
                                                     (+ (admission-max-connections admission)
                                                        +steps-at-once+)))))

(defun note-no-descriptors (server-loop)
  "Lower the limit of connections of SERVER-LOOP's server and dismiss some connections of the peer
that has the most, since the process has run out of descriptors. A lack of descriptors arises if the
rest of the program uses more descriptors than the option spare-descriptors leaves to it. Return
true if connections were dismissed. On SERVER-LOOP's loop."
  (let* ((admission (server-admission (server-loop-server server-loop)))
         (dismissed '()))
    (sb-thread:with-mutex ((admission-lock admission))
      (let ((connections (admission-connections admission)))
        (setf (admission-max-connections admission) (max 1 (- (ranking-total connections)
                                                              +steps-at-once+))
              (admission-lowered-ns admission) (loop:read-clock (server-loop-loop server-loop)))
        (loop while (and (< (admission-max-connections admission) (ranking-total connections))
                         (< 1 (owner-usage-count (largest-user connections))))
              do (push (or (dismiss admission
                                    (permit-to-leave
                                     (owner-usage-owner (largest-user connections))))
                           (return))
                       dismissed))))
    (dolist (permit dismissed) (expel server-loop permit :max-connections))
    (and dismissed t)))
