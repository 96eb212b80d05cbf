;;;; Decisions about a membership. These decisions depend on the store's entries and on the request
;;;; alone.
;;;;
;;;; Generations: the generation of a new member is greater than three numbers: the last one of its
;;;; name in the store, the last one of the member itself, and the revision of the store that was
;;;; read before its entry was written. If two processes have read the same entries, only one
;;;; writes: the other's transaction finds an entry that it has not read.

(in-package #:clgrpc.cluster)

(defun next-generation (revision existing known)
  "The generation of a member that joins when the store is at REVISION. EXISTING is the present
member of its name or nil; KNOWN is the last generation of the process that joins, 0 for none."
  (1+ (max revision known (if existing (member-generation existing) 0))))

(defun decide-join (existing asked if-taken &optional (known 0))
  "Decide whether ASKED, a member, may join while EXISTING, a member or nil, has its name.
Return :enter if its entry may replace the present one; :same if EXISTING is the same instance;
:taken if another member has the name; or :superseded if EXISTING has a later generation than KNOWN,
the generation that the asking process had, or 0. IF-TAKEN is :take-over or :refuse."
  (let ((same (and existing
                   (plusp (length (member-instance asked)))
                   (string= (member-instance asked) (member-instance existing)))))
    (cond ((null existing) :enter)
          ;; a process that joins again has done so already, without getting the answer
          (same (if (plusp known) :enter :same))
          ((< 0 known (member-generation existing)) :superseded)
          ((= known (member-generation existing)) :enter)
          ((eq :take-over if-taken) :enter)
          (t :taken))))

(defun decide-life (existing generation)
  "The state of the member that has GENERATION: :alive, :gone or :superseded. EXISTING is the
present member of its name, or nil."
  (cond ((null existing) :gone)
        ((= generation (member-generation existing)) :alive)
        (t :superseded)))

(defun require-life (existing name generation)
  "Signal NOT-A-MEMBER or SUPERSEDED unless EXISTING, a member or nil, is the member NAME of
GENERATION."
  (ecase (decide-life existing generation)
    (:alive existing)
    (:gone (refuse-membership 'not-a-member "no member has the name ~A" (printable-text name)))
    (:superseded (refuse-membership 'superseded "~A is of generation ~D now, not ~D"
                                    (printable-text name) (member-generation existing)
                                    generation))))
