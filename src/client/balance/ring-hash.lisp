;;;; The policy ring_hash (gRFC A42, A61, A76): each server has entries on a ring of 64-bit hashes,
;;;; in proportion to its weight. A call goes to the server of the first entry at or after the hash
;;;; of the call. So calls with one key go to one server, and few keys move when servers come and
;;;; go. A server's entries are the hashes of KEY_0, KEY_1, …, KEY being its first address or its
;;;; attribute :hash-key. A call's hash is the hash of the values of its header requestHashHeader,
;;;; joined by commas; without this header it is random. Without a configured header every call
;;;; fails; in other implementations xDS would give the hash. A server's weight is its attribute
;;;; :weight, or 1; a server that the resolver names several times has the sum of its weights.
;;;;
;;;; The channel connects to a server when the first call is picked for it. Calls skip servers that
;;;; have failed.
;;;;
;;;; A server with the fraction F of all weight has ⌊S · F⌋ entries, but at least one; S is
;;;; ⌈Fmin · minRingSize⌉ / Fmin, but at most maxRingSize. With three servers of equal weight and
;;;; minRingSize 1024 each has 342. The gRFC gives the entries that remain after rounding to the
;;;; next servers in turn; we do not, since then the entries of most servers would change when one
;;;; of many is removed.

(in-package #:clgrpc.balance)

(defconstant +largest-ring+ (* 8 1024 1024)
  "The maximum number of entries of a ring that a config may have (gRFC A42).")

(defstruct (ring-config (:copier nil))
  "The config of ring_hash."
  (least 1024 :type index :read-only t) ; minRingSize
  (most 4096 :type index :read-only t)  ; maxRingSize
  (header nil :type (or null string) :read-only t)) ; the header whose values are hashed, or nil

(defun parse-ring-config (object path)
  (flet ((size (name default)
           (config:integer-field object name path :default default :minimum 1
                                                  :maximum +largest-ring+)))
    (let* ((most (size "maxRingSize" 4096))
           (least (size "minRingSize" (min 1024 most)))
           (header (config:string-field object "requestHashHeader" path :default "")))
      (when (> least most)
        (config:config-error (config:member-path path "minRingSize")
                             "must not be ~D, more than maxRingSize, ~D" least most))
      (check-header header (config:member-path path "requestHashHeader"))
      (make-ring-config :least least :most most
                        :header (and (plusp (length header)) (string-downcase header))))))

(defun check-header (name path)
  "Signal an error unless NAME, at PATH, can be the name of a header with text."
  (unless (every (lambda (character)
                   (or (char<= #\a (char-downcase character) #\z)
                       (digit-char-p character)
                       (find character "-_.")))
                 name)
    (config:config-error path "must be the name of a header, not ~S" name))
  (when (and (>= (length name) 4) (string-equal "-bin" name :start2 (- (length name) 4)))
    (config:config-error path "must be a header with text, not ~S, whose values are octets" name)))

(config:register-policy :ring-hash '("ring_hash_experimental" "ring_hash") 'ring-hash
                        'parse-ring-config)

;;; The ring

(deftype hashes ()
  '(simple-array (unsigned-byte 64) (*)))

(defstruct (entries (:conc-name ring-) (:constructor make-ring-entries (hashes servers))
                    (:copier nil))
  "A ring."
  (hashes nil :type hashes :read-only t) ; the hashes in ascending order
  (servers nil :type simple-vector :read-only t)) ; the subchannel of each

(defstruct (ring-note (:include member-note) (:conc-name note-) (:copier nil))
  "The data of the policy about a server."
  ;; the server's weight, the sum of the weights of its backends
  (share 0 :type (integer 0)))

(defun server-share (subchannel)
  (note-share (subchannel-note subchannel)))

(defun server-key (subchannel)
  "The key of SUBCHANNEL's entries, a string."
  (let ((key (getf (subchannel-attributes subchannel) :hash-key)))
    (if (and (stringp key) (plusp (length key)))
        key
        (first-address (subchannel-addresses subchannel)))))

(defun ring-scale (shares config limit)
  "The number of entries of all servers together, before rounding, for servers with SHARES, a list.
At most LIMIT."
  (let ((least (/ (reduce #'min shares) (reduce #'+ shares)))
        (wanted (min limit (ring-config-least config))))
    (min (/ (ceiling (* least wanted)) least)
         (ring-config-most config)
         limit)))

(define-hot entry-hash ((octets octets) (end index) (number index)) word
  "The hash of OCTETS up to END followed by the digits of NUMBER, which the function writes after
END."
  (let ((digits (if (zerop number) 1 (loop with rest of-type index = number
                                           until (zerop rest)
                                           do (setf rest (floor rest 10))
                                           count t of-type index))))
    (loop for at of-type index downfrom (+ end digits -1) to end
          do (multiple-value-bind (rest digit) (floor number 10)
               (setf (aref octets at) (+ digit (char-code #\0))
                     number rest)))
    (xxh64 (subseq octets 0 (+ end digits)))))

(defun build-ring (subchannels config limit)
  "The ring of SUBCHANNELS, a list that is not empty, with at most about LIMIT entries, but at least
one for each."
  (let* ((shares (mapcar #'server-share subchannels))
         (total (reduce #'+ shares))
         (scale (ring-scale shares config limit))
         (counts (mapcar (lambda (share) (max 1 (floor (* scale share) total))) shares))
         (hashes (make-array (reduce #'+ counts) :element-type 'word))
         (servers (make-array (length hashes)))
         (at 0))
    (loop for subchannel in subchannels
          for count in counts
          for key = (string-octets (server-key subchannel))
          for octets = (replace (make-octets (+ (length key) 1 20)) key)
          do (setf (aref octets (length key)) (char-code #\_))
             (dotimes (number count)
               (setf (aref hashes at) (entry-hash octets (1+ (length key)) number)
                     (svref servers at) subchannel)
               (incf at)))
    (multiple-value-call #'make-ring-entries (sort-by-hash hashes servers))))

(define-hot sort-by-hash ((hashes hashes) (servers simple-vector)) (values hashes simple-vector)
  "HASHES in ascending order, and SERVERS in the order of their hashes. A radix sort, by octets."
  (let* ((count (length hashes))
         (other-hashes (make-array count :element-type 'word))
         (other-servers (make-array count))
         (places (make-array 257 :element-type 'index)))
    (loop for shift of-type (integer 0 64) from 0 to 56 by 8
          do (fill places 0)
             (loop for hash of-type word across hashes
                   do (incf (aref places (1+ (logand #xFF (ash hash (- shift)))))))
             (loop for i from 1 to 256
                   do (incf (aref places i) (aref places (1- i))))
             (dotimes (i count)
               (let* ((hash (aref hashes i))
                      (octet (logand #xFF (ash hash (- shift))))
                      (place (aref places octet)))
                 (setf (aref other-hashes place) hash
                       (svref other-servers place) (svref servers i)
                       (aref places octet) (1+ place))))
             (rotatef hashes other-hashes)
             (rotatef servers other-servers))
    (values hashes servers)))

(define-hot ring-index ((ring entries) (hash (unsigned-byte 64))) index
  "The index of the first entry of RING at or after HASH."
  (let* ((hashes (ring-hashes ring))
         (low 0)
         (high (length hashes)))
    (declare (type index low high))
    (loop while (< low high)
          do (let ((middle (ash (+ low high) -1)))
               (if (< (aref hashes middle) hash)
                   (setf low (1+ middle))
                   (setf high middle))))
    (if (= low (length hashes)) 0 low)))

;;; The policy

(defclass ring-hash (leaf-policy)
  ((config :accessor ring-hash-config
           :documentation "Its RING-CONFIG.")
   (ring :initform nil :accessor ring-hash-ring
         :documentation "The ENTRIES of the members, or nil if the members have changed since."))
  (:documentation "The policy ring_hash_experimental."))

(defmethod configure ((leaf-policy ring-hash) config)
  (setf (ring-hash-config leaf-policy) config))

(defmethod make-note ((leaf-policy ring-hash) subchannel)
  (declare (ignore subchannel))
  (make-ring-note))

(defun update-shares (leaf-policy backends)
  "Set the weights of LEAF-POLICY's members from BACKENDS. Backends for which the channel may not
have subchannels are not members."
  (map-members (lambda (subchannel) (setf (note-share (subchannel-note subchannel)) 0)) leaf-policy)
  (dolist (backend backends)
    (when-let ((member (gethash (backend-key backend) (leaf-policy-members leaf-policy))))
      (incf (note-share (subchannel-note member))
            (or (said-weight (backend-attributes backend)) 1)))))

(defmethod update-backends ((leaf-policy ring-hash) backends config)
  (configure leaf-policy config)
  (update-health leaf-policy)
  (update-members leaf-policy backends)
  (update-shares leaf-policy backends)
  (setf (ring-hash-ring leaf-policy)
        (and (plusp (hash-table-count (leaf-policy-members leaf-policy)))
             (build-ring (alexandria:hash-table-values (leaf-policy-members leaf-policy)) config
                         (options-ring-size-limit
                          (client:core-options (balancer-core leaf-policy))))))
  (review leaf-policy))

(defmethod member-idle ((leaf-policy ring-hash) subchannel)
  "Connect SUBCHANNEL if it has failed, so that its recovery is noticed; other members wait for
calls."
  (when (note-failed (subchannel-note subchannel)) (connect subchannel)))

(defun member-state (subchannel)
  "The state of SUBCHANNEL, :transient-failure from when it fails until it is ready."
  (if (note-failed (subchannel-note subchannel))
      :transient-failure
      (subchannel-state subchannel)))

(defun call-hash (call header)
  "The hash of the values of HEADER in CALL's metadata, or nil without such values."
  (let ((values (loop for (name . value) in (and call (rpc:outgoing-metadata call))
                      when (and (stringp value) (string-equal name header))
                        collect value)))
    (when (find "" values :test-not #'string=)
      (xxh64 (string-octets (format nil "~{~A~^,~}" values))))))

(defun connect-from-picker (leaf-policy subchannel)
  "Connect SUBCHANNEL after the pick under way, during which no state may change."
  (loop:defer (leaf-policy-loop leaf-policy)
              (lambda (subchannel)
                (unless (eq :shutdown (subchannel-state subchannel)) (connect subchannel)))
              subchannel))

(defun ring-failure (ring start)
  "The failure for a call if all servers of RING have failed: the failure of the server at the index
START."
  (make-failure (last-error-text (svref (ring-servers ring) start))))

(defun pick-by-key (leaf-policy ring start)
  "The server of RING at the index START or, if it has failed, the first after it that has not. The
value is its subchannel, nil while it connects, or a failure if all servers have failed."
  (loop with servers = (ring-servers ring)
        with count = (length servers)
        repeat count
        for index = start then (if (= (1+ index) count) 0 (1+ index))
        for server = (svref servers index)
        do (ecase (member-state server)
             (:ready (return server))
             (:connecting (return nil))
             (:idle (connect-from-picker leaf-policy server)
              (return nil))
             ((:transient-failure :shutdown)))
        finally (return (ring-failure ring start))))

(defun pick-at-random (leaf-policy ring start connecting)
  "The first ready server of RING from the index START on; without a ready server, the value of
PICK-BY-KEY. The function begins to connect at most one server, and none if CONNECTING is true,
because a server is connecting already."
  (loop with servers = (ring-servers ring)
        with count = (length servers)
        with coming = connecting
        repeat count
        for index = start then (if (= (1+ index) count) 0 (1+ index))
        for server = (svref servers index)
        do (case (member-state server)
             (:ready (return server))
             (:idle (unless coming
                      (setf coming t)
                      (connect-from-picker leaf-policy server))))
        finally (return (if coming nil (ring-failure ring start)))))

(defun ring-picker (leaf-policy connecting)
  "The picker of LEAF-POLICY's ring; CONNECTING is true if a member connects."
  (let ((ring (ring-hash-ring leaf-policy))
        (header (ring-config-header (ring-hash-config leaf-policy)))
        (random-state (balancer-random leaf-policy)))
    (if header
        (new-picker (lambda (call)
                      (if-let ((hash (call-hash call header)))
                        (pick-by-key leaf-policy ring (ring-index ring hash))
                        (pick-at-random leaf-policy ring
                                        (ring-index ring (random (expt 2 64) random-state))
                                        connecting)))
                    (format nil "by ~A, a ring of ~D" header (length (ring-servers ring)))
                    :choosy t)
        (make-failure "ring_hash has no requestHashHeader, by which calls are distributed"))))

(defun count-states (leaf-policy)
  "Four values: the numbers of members of LEAF-POLICY that are idle, connecting, ready and failed."
  (let ((idle 0) (connecting 0) (ready 0) (failed 0))
    (map-members (lambda (subchannel)
                   (ecase (member-state subchannel)
                     (:idle (incf idle))
                     (:connecting (incf connecting))
                     (:ready (incf ready))
                     (:transient-failure (incf failed))
                     (:shutdown)))
                 leaf-policy)
    (values idle connecting ready failed)))

(defun connect-an-idle (leaf-policy)
  "Connect a random idle server, since servers have failed and calls alone would connect no other
server. The choice is random, so that not all clients choose the same server (gRFC A117)."
  (let ((idle '()))
    (map-members (lambda (subchannel)
                   (when (eq :idle (member-state subchannel)) (push subchannel idle)))
                 leaf-policy)
    (when idle
      (connect-from-picker leaf-policy
                           (nth (random (length idle) (balancer-random leaf-policy)) idle)))))

(defmethod review ((leaf-policy ring-hash))
  (if (zerop (hash-table-count (leaf-policy-members leaf-policy)))
      (publish-failure leaf-policy)
      (multiple-value-bind (idle connecting ready failed) (count-states leaf-policy)
        (let ((state (cond ((plusp ready) :ready)
                           ((>= failed 2) :transient-failure)
                           ((plusp connecting) :connecting)
                           ((and (= 1 failed) (plusp idle)) :connecting)
                           ((plusp idle) :idle)
                           (t :transient-failure))))
          (when (and (plusp failed) (zerop ready) (zerop connecting)
                     (plusp idle))
            (connect-an-idle leaf-policy))
          (publish leaf-policy state (ring-picker leaf-policy (plusp connecting)))))))

(defmethod exit-idle ((leaf-policy ring-hash))
  "Connect any idle server if no call waits; each waiting call connects a server of its own."
  (unless (client:waiting-p (balancer-core leaf-policy)) (connect-an-idle leaf-policy)))
