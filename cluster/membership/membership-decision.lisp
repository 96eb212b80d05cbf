;;;; Decisions about a membership. They depend on the store's entries and on the request alone.
;;;;
;;;; Generations: a member's generation is greater than the last one that the store has for its
;;;; name, than the member's own last one, and than the revision of the store that was read before
;;;; its entry was written. Of two processes that read the same entries one writes: the other's
;;;; transaction finds an entry that it has not read.

(in-package #:clgrpc.cluster)

(defun next-generation (revision existing known)
  "The generation of a member that joins when the store is at REVISION. EXISTING is the present
member of its name or nil; KNOWN is the last generation of the process that joins, 0 for none."
  (1+ (max revision known (if existing (member-generation existing) 0))))

(defun decide-join (existing asked if-taken &optional (known 0))
  "Decide whether ASKED, a member, may join where there is EXISTING, a member of its name or nil.
Return :enter, its entry may replace the present one; :same, EXISTING is this very member; :taken;
or :superseded, since EXISTING is later than KNOWN, the generation that the asking process had, 0
for none. IF-TAKEN is :take-over or :refuse."
  (let ((same (and existing
                   (plusp (length (member-instance asked)))
                   (string= (member-instance asked) (member-instance existing)))))
    (cond ((null existing) :enter)
          ;; it joins again, and has not heard that it did so already
          (same (if (plusp known) :enter :same))
          ((< 0 known (member-generation existing)) :superseded)
          ((= known (member-generation existing)) :enter)
          ((eq :take-over if-taken) :enter)
          (t :taken))))

(defun decide-life (existing generation)
  "The state of a member of GENERATION where there is EXISTING, a member of its name or nil: :alive,
:gone or :superseded."
  (cond ((null existing) :gone)
        ((= generation (member-generation existing)) :alive)
        (t :superseded)))

(defun require-life (existing name generation)
  "Signal NOT-A-MEMBER or SUPERSEDED unless EXISTING, a member or nil, is NAME's of GENERATION."
  (ecase (decide-life existing generation)
    (:alive existing)
    (:gone (refuse-membership 'not-a-member "there is no member ~A" (printable-text name)))
    (:superseded (refuse-membership 'superseded "~A is of generation ~D now, not ~D"
                                    (printable-text name) (member-generation existing)
                                    generation))))
