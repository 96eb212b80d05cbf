;;;; The connections that give way when memory is short. The octets that connections hold are
;;;; charged to accounts (base/memory/account.lisp); calls are refused by these accounts
;;;; (wire/link-memory.lisp). Two events end connections:
;;;;
;;;; - All connections together hold an eighth more than max-total-held-octets, since octets are
;;;;   measured after they have arrived. The peer that holds most gives up the connection that holds
;;;;   most, until all together hold no more than the limit.
;;;; - Memory pressure: live objects fill the heap. These limits of the heap are the last resort
;;;;   after all accounts. The first new call after each collection measures the live objects. If a
;;;;   collection of all generations would leave less than a fifth of the heap free at its worst
;;;;   moment, a reserve thread collects all garbage. If the collection does not free enough, no new
;;;;   call begins. If less than a tenth is free, a connection ends as above, if connections hold
;;;;   enough to matter. A heap of small objects, which are copied, reaches these limits when 40 and
;;;;   45 per cent of it are live. Under memory pressure each refused call examines the heap as
;;;;   well, since few objects are made then and the next collection may be far off. If the pressure
;;;;   remains after a second collection of all garbage, and connections hold the missing octets, a
;;;;   connection ends too. Otherwise peers within their limits could keep out all other peers for
;;;;   any time.
;;;;
;;;; The collector leaves long vectors where they are, so a program with such vectors may use more
;;;; of the heap.

(in-package #:clgrpc.server)

;;; The connection that gives way; the admission's lock is held

(defun largest-user-entry (admission spared)
  "The entry of the peer that holds the most octets. SPARED is a table from entries to numbers of
octets, which are subtracted from what their peers hold."
  (let ((largest-user nil) (most 0))
    (maphash (lambda (name entry)
               (declare (ignore name))
               (let ((held (- (account-sum (peer-entry-account entry)) (gethash entry spared 0))))
                 (when (< most held)
                   (setf largest-user entry
                         most held))))
             (admission-peers admission))
    largest-user))

(defun permit-octets (permit)
  "The octets that the connection of PERMIT holds."
  (account-sum (server-link-account (permit-link permit))))

(defun largest-user-permit (entry)
  "The permit of the peer with ENTRY whose connection holds the most; nil if no connection has
begun."
  (let ((largest-user nil) (most -1))
    (flet ((look (permit)
             (when (and (permit-link permit) (< most (permit-octets permit)))
               (setf largest-user permit
                     most (permit-octets permit)))))
      (mapc #'look (ring-list (peer-entry-ready entry)))
      (mapc #'look (ring-list (peer-entry-unready entry))))
    largest-user))

(defun dismiss-largest-user (admission octets)
  "Dismiss permits whose connections together hold OCTETS, or one permit if OCTETS is 0; return
them."
  (let ((spared (make-hash-table :test 'eq)) (dismissed '()))
    (loop
      (let* ((entry (largest-user-entry admission spared))
             (permit (and entry (largest-user-permit entry)))
             (held (if permit (permit-octets permit) 0)))
        (unless (and permit (dismiss admission permit)) (return dismissed))
        (push permit dismissed)
        (setf (permit-octets-left permit) held)
        (incf (admission-leaving-octets admission) held)
        (incf (gethash entry spared 0) held)
        (when (minusp (decf octets held)) (return dismissed))))))

(defun give-way (server least)
  "End connections of SERVER until the remaining ones together hold at most the limit, and the ended
ones held at least LEAST octets. On a loop of SERVER."
  (let* ((admission (server-admission server))
         (server-loop (first (server-loops server)))
         (total (total-held-limit (server-options server)))
         (dismissed (sb-thread:with-mutex ((admission-lock admission))
                      (let ((more (max (- (account-sum (server-account server)) total
                                          (admission-leaving-octets admission))
                                       least)))
                        (if (minusp more) '() (dismiss-largest-user admission more))))))
    (dolist (permit dismissed) (expel server-loop permit :max-total-held-octets))))

(defun ask-to-give-way (server least)
  "Post GIVE-WAY to a loop of SERVER, unless it is posted already and has not run yet. From any
thread."
  (let ((asked (server-asked-to-give-way server)))
    (when (and (eq :serving (server-state server))
               (null (sb-ext:compare-and-swap (car asked) nil t)))
      (loop:post (server-loop-loop (first (server-loops server)))
                 (lambda ()
                   (setf (car asked) nil)
                   (give-way server least))))))

(defun bound-account (server)
  "Call GIVE-WAY whenever all connections of SERVER together hold too much."
  (let ((total (total-held-limit (server-options server)))
        (account (server-account server)))
    (call-on-excess account (+ total (ash total -3)) (lambda () (ask-to-give-way server -1)))))

;;; Memory pressure

(defglobal **looked** nil)              ; the epoch of the collection after which we looked last
(declaim (type boolean **pressure**))
(defglobal **pressure** nil)            ; no calls may begin

(defun largest-user-server ()
  "The server of the process whose connections hold the most; nil if no server serves."
  (let ((servers (remove :serving (registered **servers**) :key #'server-state :test-not #'eq)))
    (first (sort servers #'> :key (lambda (server) (account-sum (server-account server)))))))

(defun judge-heap (searched)
  "Note whether there is memory pressure, by the part of the heap that a collection would leave
free. SEARCHED is true if all garbage has just been collected. Return true if all garbage must be
collected."
  (let* ((fifth (floor (heap-size) 5))
         (spare (if (< (heap-used) (* 2 fifth)) fifth (heap-spare)))
         (missing (- fifth spare))
         (urgent (- (ash fifth -1) spare)) ; octets missing to a tenth of the heap
         (pressure **pressure**))
    (cond ((<= missing 0) (setf **pressure** nil))
          ((or searched (plusp urgent)) (setf **pressure** t)))
    (when (and searched (plusp missing))
      (let* ((server (largest-user-server))
             (held (if server (account-sum (server-account server)) 0)))
        ;; Ending a connection helps only if connections hold the missing octets. A freed octet
        ;; makes room for two, and connections may hold twice the octets that they are charged with.
        (when (or (and (plusp urgent) (<= urgent (* 4 held)))
                  (and pressure (<= missing (* 2 held))))
          (ask-to-give-way server 0))))
    (and (plusp missing) (not searched))))

(defun search-and-judge ()
  "Collect all garbage, and judge the heap afterwards."
  (search-for-garbage)
  (setf **looked** (collection-epoch))
  (judge-heap t))

(defun look-at-heap (server-loop)
  "Judge the heap after a collection since the last look, or under memory pressure. On the loop of
SERVER-LOOP."
  (setf **looked** (collection-epoch))
  (when (and (judge-heap nil) (search-due-p))
    (loop:run-on-reserve (server-reserve (server-loop-server server-loop)) #'search-and-judge
                         :if-busy :exceed)))

(define-hot (memory-pressure-p :inline t) ((server-loop server-loop)) boolean
  "True if no call may begin, since live objects fill the heap. On the loop of SERVER-LOOP."
  (when (or **pressure** (not (eq **looked** (collection-epoch)))) (look-at-heap server-loop))
  **pressure**)
